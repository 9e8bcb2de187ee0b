"""Joining and splitting along axes that are not cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardinv.tensor.axes import cut_axes
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import common_layout
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.transfer import realign

Function = Callable[..., Any]


@rule(*named("cat concat concatenate stack", torch))
def join(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tensors one after the other along an axis that is not cut, or along a new one."""
    tensors = list(kwargs.get("tensors", args[0] if args else ()))
    lead = common_layout(function, tensors)
    plain = next((t for t in tensors if not isinstance(t, ShardedTensor)), None)
    if plain is not None:
        raise LayoutError(
            f"{name_of(function)} of sharded tensors and a replicated one {tuple(plain.shape)}: "
            "shard it (ctx.shard(t)), or gather the others (ctx.gather(x))"
        )
    new = function is torch.stack
    ndim = lead.ndim + new
    dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0)) % ndim
    cut = cut_axes(lead)
    if (new and cut[0] < dim <= cut[-1]) or (not new and dim in cut):
        raise UnsupportedOperation(
            f"{name_of(function)} of sharded tensors along axis {dim}, which is cut: gather them "
            "first (ctx.gather(x))"
        )
    local = function([realign(t, lead.sharding).to_local() for t in tensors], dim)
    return ShardedTensor(local, lead.sharding, lead.trailing + (new and dim > cut[-1]), lead.folded)


@rule(*named("split chunk tensor_split split_with_sizes", torch, torch.Tensor))
def split(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Parts of a tensor along an axis that is not cut."""
    x: ShardedTensor = args[0]
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0) % x.ndim
    if dim in cut_axes(x):
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded tensor {tuple(x.shape)} along axis {dim}, which is "
            "cut: crop it with slices, or gather it first (ctx.gather(x))"
        )
    return tuple(x.like(part) for part in function(x.to_local(), *args[1:], **kwargs))
