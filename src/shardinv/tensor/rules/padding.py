"""The image continued past its border, rolled, flipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from shardinv.tensor.axes import cut_axes
from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.rules.reductions import bind
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.windows import (
    Arguments,
    CutMap,
    Function,
    Interval,
    Options,
    check_spatial,
    cut_to,
    fetched,
    filled,
    mapped,
    outcome,
    resampled,
    windows,
)


def _pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> None: ...


@rule(F.pad)
def padded(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """The image continued past its border, or cropped where a width is negative."""
    given = bind(_pad, args, kwargs)
    x = check_spatial(function, given["x"])
    mode, value = given["mode"], given["value"]
    shape = outcome(function, args, kwargs)
    dims = x.sharding.ndim
    pairs = [(int(a), int(b)) for a, b in zip(given["pad"][::2], given["pad"][1::2], strict=True)]
    pairs += [(0, 0)] * (dims - len(pairs))
    spatial = pairs[:dims][::-1]
    lead = pairs[dims:]
    if lead and any(width != (0, 0) for width in lead):
        if mode != "constant":
            raise UnsupportedOperation(
                f"F.pad of a sharded tensor {tuple(x.shape)} by {given['pad']} with mode {mode!r}: "
                "axes before the spatial ones can be padded with a constant"
            )
        widths = [n for width in ((0, 0),) * dims + tuple(lead) for n in width]
        x = x.like(F.pad(x.to_local(), widths, mode, value))
    outputs = mapped(x.sharding, shape[-dims:], [_shifted(before) for before, _ in spatial])
    if mode in ("reflect", "replicate"):
        return resampled(x, outputs, [_continued(mode, before) for before, _ in spatial])
    wanted = windows(outputs, [_behind(before) for before, _ in spatial])
    if mode == "circular":
        window = fetched(x, wanted, tuple(x.sharding.shape))
        return ShardedTensor(cut_to(window, outputs.box.shape), outputs)
    window = cut_to(fetched(x, wanted), outputs.box.shape)
    if value:
        window = filled(
            window, outputs.box.shift([-a for a, _ in spatial]), x.sharding.shape, value
        )
    return ShardedTensor(window, outputs)


def _shifted(offset: int) -> CutMap:
    return lambda cut: cut + offset


def _behind(offset: int) -> Callable[[int, int], Interval]:
    return lambda a, b: (a - offset, b - offset)


def _continued(mode: str, before: int) -> Callable[[range, int], list[int]]:
    def sources(outputs: range, length: int) -> list[int]:
        positions = [o - before for o in outputs]
        if mode == "replicate":
            return [min(max(i, 0), length - 1) for i in positions]
        mirrored = [abs(i) for i in positions]
        return [2 * (length - 1) - i if i >= length else i for i in mirrored]

    return sources


def _roll(x: Any, shifts: Any, dims: Any = None) -> None: ...


@rule(*named("roll", torch, torch.Tensor))
def rolled(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """The image moved along axes that wrap around."""
    given = bind(_roll, args, kwargs)
    x = given["x"]
    shifts, axes = given["shifts"], given["dims"]
    if axes is None or axes == ():
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded tensor {tuple(x.shape)} without dims= moves pixels "
            "through all axes: name the axes, or gather the image first (ctx.gather(x))"
        )
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    outcome(function, (x, shifts, axes), {})
    axes = [axis % x.ndim for axis in axes]
    cut = cut_axes(x)
    held = [(s, d) for s, d in zip(shifts, axes, strict=True) if d not in cut]
    if held:
        x = x.like(torch.roll(x.to_local(), [s for s, _ in held], [d for _, d in held]))
    if len(held) == len(axes):
        return x
    if x.trailing == 0 or x.folded is not None:
        x = check_spatial(function, x)
    offsets = [sum(s for s, d in zip(shifts, axes, strict=True) if d == axis) for axis in cut]
    periods = x.sharding.shape
    offsets = [o % n if n else 0 for o, n in zip(offsets, periods, strict=True)]
    wanted = [box.shift([-o for o in offsets]) for box in x.sharding.partition.boxes]
    local = fetched(x, wanted, tuple(periods))
    if x.trailing:  # fetched before the spatial axes
        first = local.ndim - x.trailing - len(cut)
        old = tuple(range(first, first + x.trailing))
        local = local.movedim(old, tuple(range(local.ndim - x.trailing, local.ndim)))
    return x.like(local)


@rule(*named("flip fliplr flipud", torch, torch.Tensor))
def flipped(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """Axes that are not cut in reverse order."""
    x = args[0]
    name = function.__name__
    dims: Any = kwargs.get("dims", args[1] if len(args) == 2 else args[1:])
    if name != "flip":
        dims = (1,) if name == "fliplr" else (0,)
    axes = [d % x.ndim for d in ((dims,) if isinstance(dims, int) else dims)]
    if any(d in cut_axes(x) for d in axes):
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded tensor {tuple(x.shape)} along axes {tuple(axes)} "
            f"would send all of it to other ranks: axes {cut_axes(x)} are cut. Gather the image "
            "first (ctx.gather(x))"
        )
    return x.like(torch.flip(x.to_local(), axes))
