"""Which pixels an operation needs for its output's boxes, and how they are fetched and cut.

What the rules for functions of a neighbourhood share: each fetches exactly what this rank's output
needs in one exchange (``halo`` in the ledger) and calls the function of torch on it. The boxes of
the output follow from those of the input, so one that keeps the size keeps the boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from shardinv.exchange import TensorSpec, fan_out, same_need
from shardinv.geometry import Box
from shardinv.tensor.axes import cut_axes
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import swap_tensors
from shardinv.tensor.registry import name_of
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding
from shardinv.tensor.transfer import fetch_boxes

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = dict[str, Any]
Interval = tuple[int, int]
CutMap = Callable[[int], int]
"""Where a cut between two boxes of the input lies in the output, along one axis."""


def mapped(sharding: Sharding, shape: Sequence[int], cuts: Sequence[CutMap]) -> Sharding:
    """The boxes of an operation's output.

    Parameters
    ----------
    sharding
        The boxes of its input.
    shape
        Spatial shape of the output.
    cuts
        For each axis, an increasing function that moves an inner cut; the outer ones are the ends.

    Returns
    -------
    Sharding
        Disjoint boxes that cover the output, some perhaps empty.
    """

    def moved(position: int, axis: int) -> int:
        if position <= 0:
            return 0
        if position >= sharding.shape[axis]:
            return shape[axis]
        return min(max(cuts[axis](position), 0), shape[axis])

    boxes = [
        Box(
            tuple(moved(a, axis) for axis, a in enumerate(box.start)),
            tuple(moved(b, axis) for axis, b in enumerate(box.stop)),
        )
        for box in sharding.partition.boxes
    ]
    return sharding.follow(shape, boxes)


def windows(outputs: Sharding, needs: Sequence[Callable[[int, int], Interval]]) -> tuple[Box, ...]:
    """Which pixels of the input each rank needs: none for no output.

    Parameters
    ----------
    outputs
        The boxes of the output.
    needs
        For each axis, from the first and the end of an interval of the output (not empty) to those
        of the input; these may lie past its border.
    """
    found = []
    for box in outputs.partition.boxes:
        if box.is_empty:
            found.append(Box((0,) * box.ndim, (0,) * box.ndim))
            continue
        spans = [need(a, b) for need, a, b in zip(needs, box.start, box.stop, strict=True)]
        found.append(Box(tuple(a for a, _ in spans), tuple(b for _, b in spans)))
    return tuple(found)


def fetched(
    x: ShardedTensor, wanted: Sequence[Box], periods: tuple[int | None, ...] | None = None
) -> torch.Tensor:
    """This rank's window, zero past the image's border."""
    return fetch_boxes(x, tuple((box,) for box in wanted), periods=periods)[0]


def of_size(window: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The window, or where this rank has no output a made-up one of at least the given size.

    The function is then called on it as on the other ranks and its result cut to no pixel, so that
    every rank has the same graph, to any order.
    """
    missing = [max(n - m, 0) for n, m in zip(size, window.shape[-len(size) :], strict=True)]
    if not any(missing):
        return window
    return F.pad(window, [n for m in reversed(missing) for n in (0, m)])


def cut_to(values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The first pixels of a result: all, or none where this rank has no output."""
    first = values.ndim - len(shape)
    for axis, length in enumerate(shape, first):
        if values.shape[axis] > length:
            values = values.narrow(axis, 0, length)
    # A box without a pixel may still be long on one axis.
    return of_size(values, shape)


def outcome(function: Function, args: Arguments, kwargs: Options) -> tuple[int, ...]:
    """The shape of a function's result, from torch itself, which checks the arguments as well."""

    def shadow(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")

    meta_args, meta_kwargs = swap_tensors((args, kwargs), shadow)
    return tuple(function(*meta_args, **meta_kwargs).shape)


def check_spatial(function: Function, x: Any, dims: int | None = None) -> ShardedTensor:
    """Raise unless the spatial axes are the last ones, and as many as the function's."""
    if not isinstance(x, ShardedTensor):
        raise LayoutError(
            f"{name_of(function)} of a replicated tensor {tuple(x.shape)} with a sharded one: "
            "kernels are replicated, images sharded"
        )
    if x.folded is not None or x.trailing:
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded tensor {tuple(x.shape)} whose spatial axes "
            f"{cut_axes(x)} are not the last, or flattened: bring them back first"
        )
    if dims is not None and x.sharding.ndim != dims:
        raise UnsupportedOperation(
            f"{name_of(function)} works on {dims} axes; the sharded tensor {tuple(x.shape)} has "
            f"{x.sharding.ndim} spatial ones, {x.sharding.shape}"
        )
    return x


def for_each_axis(value: Any, dims: int) -> tuple[int, ...]:
    """A parameter of a function of torch as one number for each axis."""
    listed = (value,) if isinstance(value, int) else tuple(int(n) for n in value)
    return listed * dims if len(listed) == 1 else listed


def kernels_of(function: Function, x: ShardedTensor, *tensors: Any) -> list[Any]:
    """Replicated weights for use in the boxes; their gradients are summed over the ranks."""
    for tensor in tensors:
        if isinstance(tensor, ShardedTensor):
            raise LayoutError(
                f"{name_of(function)} with a sharded kernel {tuple(tensor.shape)}: every rank "
                "needs all of it (ctx.gather(kernel))"
            )
    given = [tensor for tensor in tensors if tensor is not None]
    comm = x.sharding.comm
    for tensor in given:
        same_need(comm, "a replicated kernel", TensorSpec.of(tensor), tensor.requires_grad)
    local, _ = fan_out(comm, *given)
    return [None if tensor is None else local.pop(0) for tensor in tensors]


def strided(stride: int, centre: int) -> CutMap:
    """An output belongs to the rank that has the pixel in the middle of its window."""
    return lambda cut: -(-(cut - centre) // stride)


def reach_of(stride: int, padding: int, reach: int) -> Callable[[int, int], Interval]:
    """What an interval of the output of a convolution or pooling needs of the input."""
    return lambda a, b: (a * stride - padding, (b - 1) * stride - padding + reach + 1)


def filled(
    window: torch.Tensor, box: Box, shape: Sequence[int], value: float | bool
) -> torch.Tensor:
    """A window with a value instead of zero past the image's border."""
    inside = torch.ones((), dtype=torch.bool, device=window.device)
    for axis, (a, b, n) in enumerate(zip(box.start, box.stop, shape, strict=True)):
        along = torch.arange(a, b, device=window.device)
        along = (along >= 0) & (along < n)
        inside = inside & along.reshape(-1, *(1,) * (len(shape) - 1 - axis))
    return window.masked_fill(~inside, value)


def resampled(
    x: ShardedTensor,
    outputs: Sharding,
    sources: Sequence[Callable[[range, int], list[int]]],
) -> ShardedTensor:
    """An output of which every pixel is a copy of one of the input, chosen axis by axis."""
    lengths = x.sharding.shape

    def taken(axis: int, a: int, b: int) -> list[int]:
        return sources[axis](range(a, b), lengths[axis])

    def need(axis: int) -> Callable[[int, int], Interval]:
        def span(a: int, b: int) -> Interval:
            found = taken(axis, a, b)
            return min(found), max(found) + 1

        return span

    wanted = windows(outputs, [need(axis) for axis in range(len(lengths))])
    window = of_size(fetched(x, wanted), (1,) * len(lengths))
    own, first = outputs.box, wanted[outputs.comm.rank].start
    local = window
    if not own.is_empty:
        for axis, (a, b) in enumerate(zip(own.start, own.stop, strict=True)):
            chosen = [i - first[axis] for i in taken(axis, a, b)]
            local = picked(local, axis - len(lengths), chosen)
    return ShardedTensor(cut_to(local, own.shape), outputs)


def picked(values: torch.Tensor, axis: int, indices: list[int]) -> torch.Tensor:
    """Entries along an axis, no copy where they are all of them in order."""
    if indices == list(range(values.shape[axis])):
        return values
    return values.index_select(axis, torch.tensor(indices, device=values.device))
