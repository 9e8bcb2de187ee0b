"""Operands of one operation: which of them are sharded, whether they lie alike, their local parts.

Used by the rules; nothing here computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from shardinv.exchange import TensorSpec, fan_out, same_need
from shardinv.tensor.errors import LayoutError
from shardinv.tensor.registry import name_of
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.transfer import realign


def sharded_in(values: Any) -> Iterator[ShardedTensor]:
    """The sharded tensors among arguments, also within lists, tuples and dictionaries."""
    if isinstance(values, ShardedTensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from sharded_in(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from sharded_in(value)


def swap_tensors(values: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """The arguments with every tensor among them, plain or sharded, replaced."""
    if isinstance(values, torch.Tensor):
        return function(values)
    if isinstance(values, dict):
        return {key: swap_tensors(value, function) for key, value in values.items()}
    if isinstance(values, (list, tuple)) and not isinstance(values, torch.Size):
        swapped = [swap_tensors(value, function) for value in values]
        if isinstance(values, tuple) and hasattr(values, "_fields"):
            return type(values)(*swapped)
        return type(values)(swapped)
    return values


def common_layout(function: Callable[..., Any], *values: Any) -> ShardedTensor:
    """One of the sharded operands, as whose all of them lie on the ranks.

    A chosen sharding is preferred to one that follows from it (a crop, a convolution's output).

    Raises
    ------
    LayoutError
        If two lie differently.
    """
    found = list(sharded_in(values))
    first = next((x for x in found if not x.sharding.derived), found[0])
    for other in found:
        if other is not first:
            _check_alike(function, first, other)
    return first


def _check_alike(function: Callable[..., Any], a: ShardedTensor, b: ShardedTensor) -> None:
    name = name_of(function)
    if a.folded != b.folded:
        raise LayoutError(
            f"{name} of an image {tuple(b.shape)} and a flattened one {tuple(a.shape)}: view both "
            "in one shape"
        )
    if a.trailing != b.trailing:
        raise LayoutError(
            f"{name} of sharded tensors {tuple(a.shape)} and {tuple(b.shape)} with "
            f"{a.trailing} and {b.trailing} axes after the spatial ones: give both as many"
        )
    if a.sharding == b.sharding:
        return
    if a.sharding.comm is not b.sharding.comm:
        raise LayoutError(
            f"{name} of images sharded over two groups of ranks: {a.sharding} and {b.sharding}"
        )
    if a.sharding.shape != b.sharding.shape:
        raise LayoutError(f"{name} of images of {a.sharding.shape} and {b.sharding.shape} px")
    if not (a.sharding.derived or b.sharding.derived):
        raise LayoutError(
            f"{name} of images sharded differently: {a.sharding}, and {b.sharding}. Shard both "
            "with the same mesh= and align="
        )


def local_part(
    function: Callable[..., Any], operand: torch.Tensor, lead: ShardedTensor
) -> torch.Tensor:
    """The part of an operand that meets the local part of ``lead``.

    A plain operand must be the same along the spatial axes: a number, or one for each image or
    channel. It is replicated; backward, its cotangent is summed over the ranks.

    Raises
    ------
    LayoutError
        If a plain operand varies in space.
    """
    if isinstance(operand, ShardedTensor):
        if operand.sharding != lead.sharding:
            operand = realign(operand, lead.sharding)
        assert isinstance(operand, ShardedTensor)
        return operand.to_local()
    axes = 1 if lead.folded is not None else lead.sharding.ndim
    end = operand.ndim - lead.trailing
    if operand.numel() > 1 and any(n != 1 for n in operand.shape[max(end - axes, 0) : max(end, 0)]):
        raise LayoutError(
            f"{name_of(function)} of a sharded image {tuple(lead.shape)} ({lead.sharding}) and a "
            f"replicated tensor {tuple(operand.shape)} that varies in space: shard it "
            "(ctx.shard(t)), or gather the image (ctx.gather(x))"
        )
    operand = shared_operand(operand, lead)
    if operand.ndim and operand.device != lead.device:
        raise LayoutError(
            f"{name_of(function)} of an image on {lead.device} and a tensor on {operand.device}"
        )
    return operand


def shared_operand(operand: torch.Tensor, lead: ShardedTensor) -> torch.Tensor:
    """A replicated operand of work on local parts: backward, its cotangent is summed over ranks.

    Raises
    ------
    DisagreementError
        If it needs a gradient on some ranks only.
    """
    if not torch.is_grad_enabled():
        return operand
    comm = lead.sharding.comm
    if operand.is_floating_point() or operand.is_complex():
        same_need(comm, "a replicated operand", TensorSpec.of(operand), operand.requires_grad)
    if not operand.requires_grad:
        return operand
    (operand,), _ = fan_out(comm, operand)
    return operand
