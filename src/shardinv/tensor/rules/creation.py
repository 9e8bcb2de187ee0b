"""Tensors made like a sharded one: of the same shape, in the same boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardinv.tensor.errors import LayoutError
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.sharded import ShardedTensor


@rule(*named("zeros_like ones_like full_like empty_like", torch))
def like(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same shape and boxes, other values."""
    x: ShardedTensor = args[0] if args else kwargs.pop("input")
    device = kwargs.get("device")
    if device is not None and torch.device(device) not in (x.device, torch.device(x.device.type)):
        raise LayoutError(f"{name_of(function)} of a sharded tensor on {x.device}, on {device}")
    return x.like(function(x.to_local(), *args[1:], **kwargs))


@rule(*named("new_zeros new_ones new_full new_empty new_tensor", torch.Tensor))
def new(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A plain tensor of the given shape; sharded where it is that of the image."""
    x: ShardedTensor = args[0]
    if function is not torch.Tensor.new_tensor:
        size = kwargs.get("size", args[1] if len(args) == 2 else args[1:])
        size = args[1] if function is torch.Tensor.new_full else size
        if not isinstance(size, int) and tuple(size) == tuple(x.shape):
            local_size = tuple(x.to_local().shape)
            if function is torch.Tensor.new_full:
                fill: Any = kwargs.get("fill_value", args[2] if len(args) > 2 else None)
                options = {k: v for k, v in kwargs.items() if k != "fill_value"}
                return x.like(x.to_local().new_full(local_size, fill, **options))
            options = {k: v for k, v in kwargs.items() if k != "size"}
            return x.like(function(x.to_local(), local_size, **options))
    return function(x.to_local(), *args[1:], **kwargs)
