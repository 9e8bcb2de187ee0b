"""Indexing: of axes that are not cut, and crops of the image.

A crop keeps every pixel where it is: its boxes are what is left of those of the image. Other
indices in space are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardinv.geometry import Box
from shardinv.tensor.axes import cut_axes
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import local_part
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.rules.selection import select, write
from shardinv.tensor.sharded import ShardedTensor, refresh
from shardinv.tensor.sharding import Sharding
from shardinv.tensor.transfer import realign

Function = Callable[..., Any]


@rule(torch.Tensor.__getitem__)
def getitem(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take entries of leading axes, crop the image, or pick where a sharded mask is true."""
    x, index = args
    if not isinstance(x, ShardedTensor):
        raise LayoutError(
            f"a replicated tensor {tuple(x.shape)} cannot be indexed by a sharded one: shard it "
            "(ctx.shard(t))"
        )
    if isinstance(index, ShardedTensor):
        return select(function, x, index)
    local_index, sharding, trailing = _localised(function, x, index)
    return ShardedTensor(x.to_local()[local_index], sharding, trailing, x.folded)


@rule(torch.Tensor.__setitem__)
def setitem(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Write entries of leading axes, or a crop of the image, or where a sharded mask is true."""
    x, index, value = args
    if not isinstance(x, ShardedTensor):
        raise LayoutError(
            f"a sharded tensor cannot be written into a replicated one of shape {tuple(x.shape)}, "
            "which every rank holds: make it like the sharded one (x.new_zeros(...), "
            "torch.zeros_like(x)). A prior needs distribute(prior, ctx), a solver of deepinv.optim "
            "with Anderson acceleration distribute(solver, ctx)"
        )
    if isinstance(index, ShardedTensor):
        if isinstance(value, ShardedTensor):
            write(function, x, index, value)
            return
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise UnsupportedOperation(
                "where a sharded mask is true, a number can be written, or values picked by it"
            )
        if tuple(index.shape) != tuple(x.shape):
            raise IndexError(
                f"the mask of shape {tuple(index.shape)} does not match the tensor {tuple(x.shape)}"
            )
        if isinstance(value, torch.Tensor):
            value = local_part(function, value, x)
        x.to_local()[local_part(function, index, x)] = value
        refresh(x)
        return
    local_index, sharding, trailing = _localised(function, x, index)
    if isinstance(value, torch.Tensor):
        region = ShardedTensor(x.to_local()[local_index], sharding, trailing, x.folded)
        if isinstance(value, ShardedTensor) and value.sharding != sharding:
            if value.sharding.shape != sharding.shape:
                raise LayoutError(
                    f"an image of {value.sharding.shape} px is written into a region of "
                    f"{sharding.shape} px"
                )
            value = realign(value, sharding)
        value = local_part(function, value, region)
    local = x.to_local()
    if local.requires_grad and torch.is_grad_enabled():
        # A crop may be all that one rank has, and no pixel of another. Where all is overwritten
        # autograd takes the old values' cotangent for a plain zero, so that rank alone would be
        # missing in a second derivative: the new values are tied to the old ones.
        value = value + local.reshape(-1)[:0].sum().to(local.dtype)
    local[local_index] = value
    refresh(x)


def _localised(
    function: Function, x: ShardedTensor, index: Any
) -> tuple[tuple[Any, ...], Sharding, int]:
    """The index of the local part, and how the result lies on the ranks."""
    items = list(index) if isinstance(index, tuple) else [index]
    consumed = sum(_consumes(item) for item in items)
    if consumed > x.ndim:
        raise IndexError(f"too many indices for a tensor of {x.ndim} axes: {index}")
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    fill = [slice(None)] * (x.ndim - consumed)
    place = dots[0] if dots else len(items)
    items[place : place + len(dots)] = fill
    cut = cut_axes(x)
    advanced = [k for k, item in enumerate(items) if isinstance(item, (list, torch.Tensor))]
    between = items[advanced[0] : advanced[-1] + 1] if advanced else []
    if any(item is None or isinstance(item, slice) for item in between):
        _refuse(function, x, index)  # torch would move the indexed axes to the front
    axis = trailing = 0
    crops: dict[int, tuple[int, int]] = {}
    local: list[Any] = []
    for item in items:
        inside = cut[0] < axis <= cut[-1]
        if item is None:
            if inside:
                _refuse(function, x, index)
            trailing += axis > cut[-1]
            local.append(None)
            continue
        if axis in cut:
            length = x.shape[axis]
            if not isinstance(item, slice):
                _refuse(function, x, index)
            start, stop, step = item.indices(length)
            if step != 1 or (x.folded is not None and (start, stop) != (0, length)):
                _refuse(function, x, index)
            crops[axis - cut[0]] = (start, max(start, stop))
            local.append(slice(None))
        else:
            known = isinstance(item, (int, slice, list, torch.Tensor))
            if not known or isinstance(item, (bool, ShardedTensor)):
                _refuse(function, x, index)
            if isinstance(item, torch.Tensor) and item.dtype == torch.bool and item.ndim != 1:
                _refuse(function, x, index)
            if axis > cut[-1]:
                if isinstance(item, slice):
                    trailing += 1
                elif len(local) == advanced[0] if advanced else False:
                    trailing += max(torch.as_tensor(items[k]).ndim for k in advanced)
            local.append(item)
        axis += 1
    if x.folded is not None:
        return tuple(local), x.sharding, trailing
    whole = Box.whole(x.sharding.shape)
    region = Box(
        tuple(crops.get(k, (0, n))[0] for k, n in enumerate(x.sharding.shape)),
        tuple(crops.get(k, (0, n))[1] for k, n in enumerate(x.sharding.shape)),
    )
    if region == whole:
        return tuple(local), x.sharding, trailing
    sharding = x.sharding.crop(region)
    own = x.box & region
    position = 0
    for k, item in enumerate(local):
        if item is None:
            continue
        if position in cut:
            axis = position - cut[0]
            start = own.start[axis] - x.box.start[axis]
            local[k] = slice(start, start + own.shape[axis])
        position += 1
    return tuple(local), sharding, trailing


def _consumes(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
        return item.ndim
    return 1


def _refuse(function: Function, x: ShardedTensor, index: Any) -> Any:
    raise UnsupportedOperation(
        f"{name_of(function)} of a sharded tensor {tuple(x.shape)} with {index}: axes "
        f"{cut_axes(x)} are cut, and can be cropped by slices of step 1 only. Gather the image "
        "first (ctx.gather(x))"
    )


@rule(*named("select narrow index_select unbind", torch, torch.Tensor))
def lead_only(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Entries of an axis that is not cut; a crop of one that is."""
    x: ShardedTensor = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % x.ndim
    cut = cut_axes(x)
    if dim in cut and name_of(function).endswith("narrow"):
        start = int(kwargs.get("start", args[2] if len(args) > 2 else 0))
        length = kwargs.get("length", args[-1])
        start += x.shape[dim] * (start < 0)
        if not 0 <= start <= start + length <= x.shape[dim]:
            raise RuntimeError(
                f"start ({start}) + length ({length}) exceeds dimension size ({x.shape[dim]})"
            )
        crop = (*(slice(None),) * dim, slice(start, start + length))
        return getitem(torch.Tensor.__getitem__, (x, crop), {})
    if dim in cut:
        _refuse(function, x, f"dim={dim}")
    drops = name_of(function).split(".")[-1] in ("select", "unbind")
    trailing = x.trailing - (drops and dim > cut[-1])
    result = function(x.to_local(), *args[1:], **kwargs)
    if isinstance(result, tuple):
        return tuple(ShardedTensor(part, x.sharding, trailing, x.folded) for part in result)
    return ShardedTensor(result, x.sharding, trailing, x.folded)
