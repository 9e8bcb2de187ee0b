"""New tensors of a sharded tensor's size: sharded too, where the size came from one.

A library that writes ``torch.zeros(x.shape)`` means a tensor like ``x``. Its size is told from a
number that happens to match by where it came from. Tensors made *like* a given one need no mode:
their rules are in ``rules.creation``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from shardinv.tensor.axes import cut_axes
from shardinv.tensor.registry import named
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding

Function = Callable[..., Any]


class Extent(int):
    """The length of a cut axis, which remembers what it is the length of."""

    sharding: Sharding
    axis: int
    folded: tuple[int, ...] | None

    def __new__(  # noqa: D102
        cls, length: int, sharding: Sharding, axis: int, folded: tuple[int, ...] | None = None
    ) -> Extent:
        extent = super().__new__(cls, length)
        extent.sharding, extent.axis, extent.folded = sharding, axis, folded
        return extent

    def __reduce__(self) -> Any:
        # To other ranks it goes as the number that it is.
        return int, (int(self),)


class _Place(NamedTuple):
    """How a tensor of a given size lies on the ranks."""

    sharding: Sharding
    trailing: int
    folded: tuple[int, ...] | None
    local_size: tuple[int, ...]

    def wrap(self, local: torch.Tensor) -> ShardedTensor:
        return ShardedTensor(local, self.sharding, self.trailing, self.folded)


class sharded_factories(TorchFunctionMode):
    """A context in which new tensors of a sharded tensor's size are sharded as it is.

    ``torch.zeros(x.shape)``, ``torch.randn(B, C, *x.shape[2:])``, ``t.expand(x.shape)`` and their
    like then make no tensor that holds the whole image. A length that was computed with
    (``x.shape[-1] // 2``) is a number as any other. Distributed solvers and operators enter it by
    themselves.

    Examples
    --------
    >>> import torch
    >>> from shardinv import DistributedContext
    >>> from shardinv.tensor import ShardedTensor, sharded_factories
    >>> with DistributedContext() as ctx, sharded_factories():
    ...     x = ctx.zeros((1, 3, 8, 6))
    ...     print(isinstance(torch.ones(x.shape), ShardedTensor))
    True
    """

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LENGTHS:
            result = func(*args, **kwargs)
            x = args[0] if args else None
            if isinstance(x, ShardedTensor):
                return _tagged(func, x, args[1:], kwargs, result)
            return result
        if func is torch.Tensor.register_hook and _is_sharded(args[0]):
            return func(args[0], _inside(args[1]))
        maker = _MAKERS.get(func)
        made = maker(func, args, dict(kwargs)) if maker is not None else None
        return func(*args, **kwargs) if made is None else made


def _inside(hook: Function) -> Function:
    """A hook that runs in the same context, as it would where it is written."""

    def run(gradient: torch.Tensor) -> Any:
        with sharded_factories():
            return hook(gradient)

    return run


def _is_sharded(x: Any) -> bool:
    return isinstance(x, ShardedTensor)


# -- lengths ---------------------------------------------------------------------------------------

_SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_COUNTS = {*named("numel nelement", torch, torch.Tensor)}
_LENGTHS = {_SHAPE, torch.Tensor.size, *_COUNTS}


def _tagged(
    function: Function, x: ShardedTensor, rest: tuple[Any, ...], kwargs: Any, result: Any
) -> Any:
    if function in _COUNTS:
        # The length of the whole, flattened.
        if x.trailing or x.folded is not None:
            return result
        return Extent(result, x.sharding, 0, tuple(x.shape[: x.ndim - x.sharding.ndim]))
    lengths: list[int] = list(x.size())
    for number, axis in enumerate(cut_axes(x)):
        lengths[axis] = Extent(lengths[axis], x.sharding, number, x.folded)
    if isinstance(result, tuple):
        return torch.Size(lengths)
    return lengths[kwargs.get("dim", rest[0] if rest else 0)]


def _place(size: Any) -> _Place | None:
    """Where a tensor of a size lies, if the size is that of a sharded one."""
    items: list[Any] = list(size)
    first = next((k for k, n in enumerate(items) if isinstance(n, Extent)), None)
    if first is None:
        return None
    sharding, folded = items[first].sharding, items[first].folded
    if folded is not None:
        if first != len(items) - 1:
            return None
        local = (*items[:first], prod(folded) * sharding.box.size)
        return _Place(sharding, 0, folded, _numbers(local))
    found = items[first : first + sharding.ndim]
    expected = [(sharding, axis, None) for axis in range(sharding.ndim)]
    if [
        (n.sharding, n.axis, n.folded) if isinstance(n, Extent) else None for n in found
    ] != expected:
        return None
    rest = items[first + sharding.ndim :]
    local = (*items[:first], *sharding.box.shape, *rest)
    return _Place(sharding, len(rest), None, _numbers(local))


def _numbers(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(n) for n in size)


# -- makers ----------------------------------------------------------------------------------------


def _size_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The size among arguments that begin with it, as one sequence or as several numbers."""
    if "size" in kwargs:
        return kwargs.pop("size")
    return args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _filled(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("out") is not None:
        return None
    place = _place(_size_of(args, kwargs))
    return None if place is None else place.wrap(function(place.local_size, **kwargs))


def _full(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("out") is not None:
        return None
    size = kwargs.pop("size") if "size" in kwargs else args[0]
    value = kwargs.pop("fill_value") if "fill_value" in kwargs else args[-1]
    place = _place(size)
    return None if place is None else place.wrap(function(place.local_size, value, **kwargs))


def _new(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    rest: tuple[Any, ...] = ()
    if function is torch.Tensor.new_full:
        size = kwargs.pop("size") if "size" in kwargs else args[1]
        rest = (kwargs.pop("fill_value") if "fill_value" in kwargs else args[-1],)
    else:
        size = _size_of(args[1:], kwargs)
    place = _place(size)
    if place is None:
        return None
    plain = x.to_local() if _is_sharded(x) else x
    return place.wrap(function(plain, place.local_size, *rest, **kwargs))


def _drawn(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("out") is not None:
        return None
    place = _place(_size_of(args, kwargs))
    if place is None:
        return None
    generator, grad = kwargs.pop("generator", None), kwargs.pop("requires_grad", False)
    target = place.wrap(torch.empty(place.local_size, **kwargs))
    draw = target.normal_ if function is torch.randn else target.uniform_
    return draw(generator=generator).requires_grad_(grad)


def _spread(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A replicated tensor with one pixel, repeated over the image without a copy."""
    x = args[0]
    if _is_sharded(x):
        return None
    place = _place(_size_of(args[1:], kwargs))
    if place is None or place.folded is not None or place.trailing:
        return None
    axes = place.sharding.ndim
    if any(n != 1 for n in x.shape[max(x.ndim - axes, 0) :]):
        return None
    # A product with ones, so that the gradient of x is summed over the ranks as in any product.
    ones = torch.ones((), dtype=x.dtype, device=x.device)
    return place.wrap(ones.expand(place.local_size)) * x


_MAKERS: dict[Function, Function] = {
    **dict.fromkeys(named("zeros ones empty", torch), _filled),
    torch.full: _full,
    **dict.fromkeys(named("new_zeros new_ones new_empty new_full", torch.Tensor), _new),
    **dict.fromkeys(named("rand randn", torch), _drawn),
    **dict.fromkeys([torch.Tensor.expand, torch.broadcast_to], _spread),
}
