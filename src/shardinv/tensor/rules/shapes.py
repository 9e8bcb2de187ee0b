"""Other views of the same values: leading axes rearranged, or the spatial axes folded into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardinv.tensor.axes import cut_axes
from shardinv.tensor.columns import Columns, refusal
from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.sharded import ShardedTensor

Function = Callable[..., Any]


@rule(*named("view reshape", torch.Tensor), torch.reshape)
def view(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view that keeps the spatial axes, folds them, or unfolds them again."""
    x: ShardedTensor = args[0]
    size = args[1] if len(args) == 2 else kwargs.get("shape", kwargs.get("size", args[1:]))
    if isinstance(size, torch.dtype):
        return _refuse(function, x, size)
    return viewed(function, x, (size,) if isinstance(size, int) else tuple(size))


@rule(*named("view_as reshape_as", torch.Tensor))
def view_like(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view of another tensor's shape."""
    return viewed(function, args[0], tuple(args[1].shape))


def viewed(function: Function, x: ShardedTensor, size: Sequence[int]) -> ShardedTensor:
    """The view of a given shape, -1 for the length that follows."""
    size = _resolved(tuple(x.shape), size)
    if size == tuple(x.shape):
        return x.like(x.to_local())
    local = x.to_local()
    spatial = x.sharding.shape
    if x.folded is not None:
        values = local.reshape(*local.shape[:-1], *x.folded, *x.box.shape)
    elif x.trailing:
        return _refuse(function, x, size)
    else:
        values = local
    lead = values.shape[: values.ndim - x.sharding.ndim]
    if len(size) >= len(spatial) and size[len(size) - len(spatial) :] == spatial:
        new_lead = size[: len(size) - len(spatial)]
        return ShardedTensor(values.reshape(*new_lead, *x.box.shape), x.sharding)
    # Folded: the last length is the spatial axes and some of those before them.
    kept = len(lead)
    folded: tuple[int, ...] = ()
    while math.prod(folded) * math.prod(spatial) < size[-1] and kept > 0:
        kept -= 1
        folded = (lead[kept], *folded)
    if math.prod(folded) * math.prod(spatial) != size[-1] or not size:
        return _refuse(function, x, size)
    flat = values.reshape(*size[:-1], math.prod(folded) * x.box.size)
    # Their product is all that counts: images folded by other ways lie alike.
    return ShardedTensor(flat, x.sharding, folded=(math.prod(folded),))


def _resolved(shape: tuple[int, ...], size: Sequence[int]) -> tuple[int, ...]:
    known = math.prod(n for n in size if n != -1)
    missing = math.prod(shape) // known if known else 0
    resolved = tuple(missing if n == -1 else int(n) for n in size)
    if math.prod(resolved) != math.prod(shape):
        raise RuntimeError(f"shape {list(size)} is invalid for a tensor of shape {list(shape)}")
    return resolved


def _refuse(function: Function, x: ShardedTensor, size: Any) -> Any:
    raise UnsupportedOperation(
        f"{name_of(function)} of a sharded tensor {tuple(x.shape)} as {size}: a view keeps the "
        f"spatial axes {x.sharding.shape}, or folds all of them into its last axis"
    )


@rule(*named("flatten", torch, torch.Tensor))
def flatten(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Axes from one to another folded into one."""
    x: ShardedTensor = args[0]
    first = kwargs.get("start_dim", args[1] if len(args) > 1 else 0) % x.ndim
    last = kwargs.get("end_dim", args[2] if len(args) > 2 else -1) % x.ndim
    shape = tuple(x.shape)
    size = (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
    return viewed(function, x, size)


@rule(*named("ravel", torch, torch.Tensor))
def ravel(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All axes folded into one."""
    return viewed(function, args[0], (-1,))


@rule(*named("unflatten", torch, torch.Tensor))
def unflatten(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An axis unfolded into several."""
    x: ShardedTensor = args[0]
    dim: int = kwargs.get("dim", args[1] if len(args) > 1 else 0) % x.ndim
    sizes = tuple(kwargs.get("sizes", args[2] if len(args) > 2 else ()))
    shape = tuple(x.shape)
    return viewed(
        function, x, (*shape[:dim], *_resolved(shape[dim : dim + 1], sizes), *shape[dim + 1 :])
    )


@rule(*named("unsqueeze", torch, torch.Tensor))
def unsqueeze(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A new axis before the spatial ones, or after them."""
    x: ShardedTensor = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % (x.ndim + 1)
    cut = cut_axes(x)
    if cut[0] < dim <= cut[-1] or (x.folded is not None and dim > cut[-1]):
        return _refuse(function, x, f"with a new axis {dim}")
    local = x.to_local().unsqueeze(dim)
    return ShardedTensor(local, x.sharding, x.trailing + (dim > cut[-1]), x.folded)


@rule(*named("squeeze", torch, torch.Tensor))
def squeeze(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Axes of length 1 dropped; never a spatial one."""
    x: ShardedTensor = args[0]
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    cut = cut_axes(x)
    asked = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = sorted({d % x.ndim for d in asked if x.shape[d] == 1})
    if any(d in cut for d in gone):
        return _refuse(function, x, f"without axes {gone}")
    trailing = x.trailing - sum(d > cut[-1] for d in gone)
    local = x.to_local()
    for d in reversed(gone):
        local = local.squeeze(d)
    return ShardedTensor(local, x.sharding, trailing, x.folded)


@rule(*named("expand", torch.Tensor), *named("expand_as", torch.Tensor))
def expand(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leading axes of length 1 repeated without a copy."""
    x = args[0]
    if not isinstance(x, ShardedTensor):  # plain.expand_as(sharded)
        return torch.Tensor.expand(x, tuple(args[1].shape))
    if function is torch.Tensor.expand_as:
        size: tuple[int, ...] = tuple(args[1].shape)
    else:
        listed = args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:]
        size = tuple(kwargs.get("size", listed))
    shape = (1,) * (len(size) - x.ndim) + tuple(x.shape)
    cut = [axis + len(size) - x.ndim for axis in cut_axes(x)]
    local_size = list(size)
    local_shape = (1,) * (len(size) - x.ndim) + tuple(x.to_local().shape)
    for axis in cut:
        if size[axis] not in (-1, shape[axis]):
            return _refuse(function, x, size)
        local_size[axis] = local_shape[axis]
    return x.like(x.to_local().expand(local_size))


@rule(*named("repeat", torch.Tensor))
def repeat(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leading axes repeated."""
    x: ShardedTensor = args[0]
    times = tuple(args[1]) if len(args) == 2 and not isinstance(args[1], int) else args[1:]
    extra = len(times) - x.ndim
    if any(times[axis + extra] != 1 for axis in cut_axes(x)):
        return _refuse(function, x, f"repeated {times}")
    return x.like(x.to_local().repeat(times))


@rule(*named("tile", torch, torch.Tensor))
def tile(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leading axes repeated; missing counts are 1."""
    x: ShardedTensor = args[0]
    times = tuple(args[1]) if len(args) == 2 and not isinstance(args[1], int) else args[1:]
    times = tuple(kwargs.get("dims", times))
    return repeat(torch.Tensor.repeat, (x, (1,) * (x.ndim - len(times)) + times), {})


@rule(torch.view_as_real)
def as_real(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Real and imaginary parts along a new axis after the spatial ones."""
    x: ShardedTensor = args[0]
    if x.folded is not None:
        return _refuse(function, x, "real and imaginary parts")
    return ShardedTensor(torch.view_as_real(x.to_local()), x.sharding, x.trailing + 1)


@rule(torch.view_as_complex)
def as_complex(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The last axis, of real and imaginary parts, as one number."""
    x: ShardedTensor = args[0]
    if not x.trailing:
        return _refuse(function, x, "complex numbers")
    return ShardedTensor(torch.view_as_complex(x.to_local()), x.sharding, x.trailing - 1)


@rule(torch.broadcast_to, torch.Tensor.broadcast_to)
def broadcast_to(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leading axes of length 1 repeated without a copy."""
    return expand(torch.Tensor.expand, (args[0], tuple(kwargs.get("size", args[-1]))), {})


@rule(*named("transpose swapaxes swapdims", torch, torch.Tensor))
def transpose(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Two leading axes exchanged."""
    x = args[0]
    a, b = (d % x.ndim for d in (*args[1:3], *kwargs.values()))
    if isinstance(x, Columns):
        if {a, b} != {x.ndim - 1, x.ndim - 2}:
            raise refusal(function)
        return x.rows
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return permuted(function, x, order)


@rule(*named("permute", torch, torch.Tensor))
def permute(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leading axes in another order."""
    x: ShardedTensor = args[0]
    dims = args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:]
    return permuted(function, x, [d % x.ndim for d in kwargs.get("dims", dims)])


@rule(*named("movedim moveaxis", torch, torch.Tensor))
def movedim(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Axes moved: before the spatial ones, or after them."""
    x: ShardedTensor = args[0]
    # The lengths of a tensor without values tell where its axes went.
    probe = torch.empty(tuple(range(x.ndim)), device="meta")
    return permuted(function, x, [int(n) for n in function(probe, *args[1:], **kwargs).shape])


def permuted(function: Function, x: ShardedTensor, order: Sequence[int]) -> ShardedTensor | Columns:
    """The axes in another order, in which the cut ones still follow one another."""
    cut = cut_axes(x)
    first = list(order).index(cut[0])
    if tuple(order[first : first + len(cut)]) != cut:
        return _refuse(function, x, f"with its axes in the order {tuple(order)}")
    trailing = x.ndim - first - len(cut)
    if x.folded is not None and trailing:
        if list(order) == [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]:
            return Columns(x)
        return _refuse(function, x, f"with its axes in the order {tuple(order)}")
    return ShardedTensor(x.to_local().permute(*order), x.sharding, trailing, x.folded)
