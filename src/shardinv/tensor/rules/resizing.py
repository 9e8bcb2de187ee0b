"""Other sizes: interpolation and pixel shuffling; and differences of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from shardinv.tensor.axes import cut_axes
from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.registry import named, rule
from shardinv.tensor.rules.reductions import bind
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding
from shardinv.tensor.windows import (
    Arguments,
    CutMap,
    Function,
    Interval,
    Options,
    check_spatial,
    cut_to,
    fetched,
    mapped,
    of_size,
    outcome,
    picked,
    resampled,
    windows,
)


@rule(*named("pixel_shuffle", torch))
def pixel_shuffle(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """Channels laid out as pixels of a finer image. No message."""
    x = check_spatial(function, args[0] if args else kwargs["input"], 2)
    factor: Any = kwargs.get("upscale_factor", args[1] if len(args) > 1 else None)
    shape = outcome(function, args, kwargs)
    outputs = mapped(x.sharding, shape[-2:], [lambda cut: cut * factor] * 2)
    local = function(of_size(x.to_local(), (1, 1)), factor)
    return ShardedTensor(cut_to(local, outputs.box.shape), outputs)


@rule(*named("pixel_unshuffle", torch))
def pixel_unshuffle(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """Pixels of a finer image laid out as channels."""
    x = check_spatial(function, args[0] if args else kwargs["input"], 2)
    factor: Any = kwargs.get("downscale_factor", args[1] if len(args) > 1 else None)
    shape = outcome(function, args, kwargs)
    outputs = mapped(x.sharding, shape[-2:], [lambda cut: -(-cut // factor)] * 2)
    needs = [lambda a, b: (a * factor, b * factor)] * 2
    window = of_size(fetched(x, windows(outputs, needs)), (factor, factor))
    return ShardedTensor(cut_to(function(window, factor), outputs.box.shape), outputs)


def _interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> None: ...


@rule(F.interpolate)
def interpolated(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """The image on another grid, by the nearest pixel or linearly."""
    given = bind(_interpolate, args, kwargs)
    x, mode = check_spatial(function, given["x"]), given["mode"]
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[x.sharding.ndim]
    if mode not in ("nearest", "nearest-exact", linear) or given["antialias"]:
        raise UnsupportedOperation(
            f"F.interpolate of a sharded tensor with mode={mode!r}, antialias="
            f"{given['antialias']} has no rule; 'nearest', 'nearest-exact' and {linear!r} have"
        )
    dims = x.sharding.ndim
    shape = outcome(function, args, kwargs)[-dims:]
    factors: Iterable[float | None] = (None,) * dims
    if given["scale_factor"] is not None and not given["recompute_scale_factor"]:
        scale = given["scale_factor"]
        factors = scale if isinstance(scale, (list, tuple)) else (scale,) * dims
    corners = bool(given["align_corners"])
    steps = [
        _step(n, m, None if factor is None else float(factor), corners)
        for n, m, factor in zip(x.sharding.shape, shape, factors, strict=True)
    ]
    outputs = mapped(
        x.sharding, shape, [_scaled(n, m) for n, m in zip(x.sharding.shape, shape, strict=True)]
    )
    if mode == linear:
        return _linear(x, outputs, steps, corners)
    shift = 0.5 if mode == "nearest-exact" else 0.0

    def nearest(step: float) -> Callable[[range, int], list[int]]:
        return lambda positions, length: [
            min(math.floor((o + shift) * step), length - 1) for o in positions
        ]

    return resampled(x, outputs, [nearest(step) for step in steps])


def _step(length: int, size: int, factor: float | None, corners: bool) -> float:
    """Pixels of the input from one of the output to the next."""
    if corners:
        return (length - 1) / (size - 1) if size > 1 else 0.0
    return length / size if factor is None else 1 / factor


def _scaled(length: int, size: int) -> CutMap:
    return lambda cut: round(cut * size / length)


def _linear(
    x: ShardedTensor, outputs: Sharding, steps: Sequence[float], corners: bool
) -> ShardedTensor:
    lengths = x.sharding.shape

    def position(axis: int, o: int) -> float:
        return o * steps[axis] if corners else max((o + 0.5) * steps[axis] - 0.5, 0.0)

    def need(axis: int) -> Callable[[int, int], Interval]:
        end = lengths[axis]
        return lambda a, b: (
            min(math.floor(position(axis, a)), end - 1),
            min(math.floor(position(axis, b - 1)) + 2, end),
        )

    wanted = windows(outputs, [need(axis) for axis in range(len(lengths))])
    local = of_size(fetched(x, wanted), (1,) * len(lengths))
    own, first = outputs.box, wanted[outputs.comm.rank].start
    if not own.is_empty:
        for axis, (a, b) in enumerate(zip(own.start, own.stop, strict=True)):
            at = [position(axis, o) for o in range(a, b)]
            left = [min(math.floor(p), lengths[axis] - 1) for p in at]
            right = [min(i + 1, lengths[axis] - 1) for i in left]
            share = torch.tensor(
                [p - i for p, i in zip(at, left, strict=True)], dtype=x.dtype, device=x.device
            ).reshape(-1, *(1,) * (len(lengths) - 1 - axis))
            before = picked(local, axis - len(lengths), [i - first[axis] for i in left])
            after = picked(local, axis - len(lengths), [i - first[axis] for i in right])
            local = before * (1 - share) + after * share
    return ShardedTensor(cut_to(local, own.shape), outputs)


@rule(*named("diff", torch, torch.Tensor))
def differences(function: Function, args: Arguments, kwargs: Options) -> Any:
    """Differences between neighbours along an axis."""
    names = ("input", "n", "dim", "prepend", "append")
    given = {"n": 1, "dim": -1, **dict(zip(names, args, strict=False)), **kwargs}
    if given.get("prepend") is not None or given.get("append") is not None:
        raise UnsupportedOperation("torch.diff of a sharded tensor takes no prepend= and append=")
    x, dim = given["input"], given["dim"] % given["input"].ndim
    if dim not in cut_axes(x):
        return x.like(torch.diff(x.to_local(), given["n"], dim))
    for _ in range(given["n"]):
        length = x.shape[dim]
        x = x.narrow(dim, 1, max(length - 1, 0)) - x.narrow(dim, 0, max(length - 1, 0))
    return x
