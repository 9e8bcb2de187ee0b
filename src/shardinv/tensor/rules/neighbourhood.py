"""Functions whose every pixel depends on a few around it: padding, convolutions, pooling, resizing.

Each works out which pixels of its input this rank's output needs, fetches exactly those in one
exchange (``halo`` in the ledger) and calls the function of torch on them. The boxes of the output
follow from those of the input, so that a convolution that keeps the size keeps the boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from shardinv.exchange import fan_out
from shardinv.geometry import Box
from shardinv.tensor.axes import cut_axes
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import swap_tensors
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.rules.reductions import bind
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding
from shardinv.tensor.transfer import fetch_boxes

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = dict[str, Any]
Interval = tuple[int, int]
CutMap = Callable[[int], int]
"""Where a cut between two boxes of the input lies in the output, along one axis."""


# -- geometry --------------------------------------------------------------------------------------


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


def _check(function: Function, x: Any, dims: int | None = None) -> ShardedTensor:
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


def _each(value: Any, dims: int) -> tuple[int, ...]:
    listed = (value,) if isinstance(value, int) else tuple(int(n) for n in value)
    return listed * dims if len(listed) == 1 else listed


def _weights(function: Function, x: ShardedTensor, *tensors: Any) -> list[Any]:
    """Replicated weights for use in the boxes; their gradients are summed over the ranks."""
    for tensor in tensors:
        if isinstance(tensor, ShardedTensor):
            raise LayoutError(
                f"{name_of(function)} with a sharded kernel {tuple(tensor.shape)}: every rank "
                "needs all of it (ctx.gather(kernel))"
            )
    given = [tensor for tensor in tensors if tensor is not None]
    local, _ = fan_out(x.sharding.comm, *given)
    return [None if tensor is None else local.pop(0) for tensor in tensors]


# -- convolutions ----------------------------------------------------------------------------------


def _conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> None: ...


@rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """A convolution, past the border of the image with zeros."""
    given = bind(_conv, args, kwargs)
    weight = given["weight"]
    x = _check(function, given["x"], int(function.__name__[4]))
    shape = outcome(function, args, kwargs)
    dims = x.sharding.ndim
    stride, dilation = _each(given["stride"], dims), _each(given["dilation"], dims)
    reach = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    if given["padding"] == "same":
        padding: tuple[int, ...] = tuple(r // 2 for r in reach)
    elif given["padding"] == "valid":
        padding = (0,) * dims
    else:
        padding = _each(given["padding"], dims)
    outputs = mapped(
        x.sharding,
        shape[-dims:],
        [_strided(s, r // 2 - p) for s, r, p in zip(stride, reach, padding, strict=True)],
    )
    needs = [_window(s, p, r) for s, p, r in zip(stride, padding, reach, strict=True)]
    weight, bias = _weights(function, x, weight, given["bias"])
    window = of_size(fetched(x, windows(outputs, needs)), [r + 1 for r in reach])
    local = function(window, weight, bias, stride, 0, dilation, given["groups"])
    return ShardedTensor(cut_to(local, outputs.box.shape), outputs)


def _strided(stride: int, centre: int) -> CutMap:
    """An output belongs to the rank that has the pixel in the middle of its window."""
    return lambda cut: -(-(cut - centre) // stride)


def _window(stride: int, padding: int, reach: int) -> Callable[[int, int], Interval]:
    return lambda a, b: (a * stride - padding, (b - 1) * stride - padding + reach + 1)


def _conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> None: ...


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed_convolution(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """The transpose of a convolution."""
    given = bind(_conv_transpose, args, kwargs)
    weight = given["weight"]
    x = _check(function, given["x"], int(function.__name__[14]))
    shape = outcome(function, args, kwargs)
    dims = x.sharding.ndim
    stride, padding = _each(given["stride"], dims), _each(given["padding"], dims)
    dilation = _each(given["dilation"], dims)
    reach = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    steps = list(zip(stride, padding, reach, strict=True))
    outputs = mapped(x.sharding, shape[-dims:], [_spread(s, p, r) for s, p, r in steps])
    wanted = windows(outputs, [_contributors(s, p, r) for s, p, r in steps])
    weight, bias = _weights(function, x, weight, given["bias"])
    window = of_size(fetched(x, wanted), (1,) * dims)
    groups = given["groups"]
    local = function(window, weight, None, stride, 0, 0, groups, dilation)
    # The result begins at the first output that the window reaches; past its end nothing reaches.
    own = outputs.box
    first = [i * s - p for i, (s, p, _) in zip(wanted[outputs.comm.rank].start, steps, strict=True)]
    margins = [
        n
        for begin, a, b, held in reversed(
            list(zip(first, own.start, own.stop, local.shape[-dims:], strict=True))
        )
        for n in ((begin - a, b - begin - held) if not own.is_empty else (0, 0))
    ]
    local = cut_to(F.pad(local, margins), own.shape)
    if bias is not None:
        local = local + bias.reshape(-1, *(1,) * dims)
    return ShardedTensor(local, outputs)


def _spread(stride: int, padding: int, reach: int) -> CutMap:
    return lambda cut: cut * stride + (reach - stride + 1) // 2 - padding


def _contributors(stride: int, padding: int, reach: int) -> Callable[[int, int], Interval]:
    def need(a: int, b: int) -> Interval:
        stop = (b - 1 + padding) // stride + 1
        return min(-(-(a + padding - reach) // stride), stop - 1), stop

    return need


# -- pooling ---------------------------------------------------------------------------------------


def _avg_pool(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> None: ...


@rule(*named("avg_pool1d avg_pool2d avg_pool3d", F))
def average_pool(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """Means over windows."""
    given = bind(_avg_pool, args, kwargs)
    x = _check(function, given["x"], int(function.__name__[8]))
    dims = x.sharding.ndim
    kernel = _each(given["kernel_size"], dims)
    stride = _each(given["stride"] or kernel, dims)
    padding = _each(given["padding"], dims)
    shape = outcome(function, args, kwargs)
    reach = [k - 1 for k in kernel]
    _check_ceil(function, given["ceil_mode"], x, shape[-dims:], kernel, stride, padding)
    outputs, local = _pooled(
        x,
        shape[-dims:],
        reach,
        stride,
        padding,
        lambda window: function(window, kernel, stride, 0),
    )
    if given["divisor_override"] is not None:
        local = local * (math.prod(kernel) / given["divisor_override"])
    elif any(padding) and not given["count_include_pad"]:
        for axis, (k, s, p, n) in enumerate(zip(kernel, stride, padding, x.sharding.shape)):
            own = range(outputs.box.start[axis], outputs.box.stop[axis])
            held = [min(o * s - p + k, n) - max(o * s - p, 0) for o in own]
            share = torch.tensor([k / h for h in held], dtype=x.dtype, device=x.device)
            local = local * share.reshape(-1, *(1,) * (dims - 1 - axis))
    return ShardedTensor(local, outputs)


def _max_pool(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> None: ...


@rule(
    *named("max_pool1d max_pool2d max_pool3d", F, torch),
)
def max_pool(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """Maxima over windows."""
    given = bind(_max_pool, args, kwargs)
    if given["return_indices"]:
        raise UnsupportedOperation("max_pool with return_indices of a sharded tensor has no rule")
    dims = given["x"].sharding.ndim
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    if function is not pool and function.__name__ != f"max_pool{dims}d":
        _check(function, given["x"], -1)
    x = _check(pool, given["x"], dims)
    kernel, dilation = _each(given["kernel_size"], dims), _each(given["dilation"], dims)
    stride = _each(given["stride"] or kernel, dims)
    padding = _each(given["padding"], dims)
    shape = outcome(function, args, kwargs)
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    spans = [r + 1 for r in reach]
    _check_ceil(pool, given["ceil_mode"], x, shape[-dims:], spans, stride, padding)

    def pooled(window: torch.Tensor) -> Any:
        return pool(window, kernel, stride, 0, dilation)

    outputs, local = _pooled(x, shape[-dims:], reach, stride, padding, pooled, -math.inf)
    return ShardedTensor(local, outputs)


def _pooled(
    x: ShardedTensor,
    shape: Sequence[int],
    reach: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    pool: Callable[[torch.Tensor], torch.Tensor],
    outside: float = 0.0,
) -> tuple[Sharding, torch.Tensor]:
    steps = list(zip(stride, padding, reach, strict=True))
    outputs = mapped(x.sharding, shape, [_strided(s, r // 2 - p) for s, p, r in steps])
    wanted = windows(outputs, [_window(s, p, r) for s, p, r in steps])
    window = fetched(x, wanted)
    if outside and any(padding):
        window = _filled(window, wanted[outputs.comm.rank], x.sharding.shape, outside)
    local = pool(of_size(window, [r + 1 for r in reach]))
    return outputs, cut_to(local, outputs.box.shape)


def _check_ceil(
    function: Function,
    ceil_mode: bool,
    x: ShardedTensor,
    shape: Sequence[int],
    spans: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> None:
    """Refuse windows that hang over the padded image: torch has rules of its own for them."""
    steps = zip(x.sharding.shape, shape, spans, stride, padding, strict=True)
    if ceil_mode and any((m - 1) * s + span > n + 2 * p for n, m, span, s, p in steps):
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded image of {x.sharding.shape} px with ceil_mode=True, "
            "where the last window hangs over the border: pad the image first (F.pad)"
        )


def _filled(
    window: torch.Tensor, box: Box, shape: Sequence[int], value: float | bool
) -> torch.Tensor:
    """A window with a value instead of zero past the image's border."""
    inside = torch.ones((), dtype=torch.bool, device=window.device)
    for axis, (a, b, n) in enumerate(zip(box.start, box.stop, shape, strict=True)):
        along = torch.arange(a, b, device=window.device)
        along = (along >= 0) & (along < n)
        inside = inside & along.reshape(-1, *(1,) * (len(shape) - 1 - axis))
    return window.masked_fill(~inside, value)


# -- continuing the image --------------------------------------------------------------------------


def _pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> None: ...


@rule(F.pad)
def padded(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """The image continued past its border, or cropped where a width is negative."""
    given = bind(_pad, args, kwargs)
    x = _check(function, given["x"])
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
        return _resampled(x, outputs, [_continued(mode, before) for before, _ in spatial])
    wanted = windows(outputs, [_behind(before) for before, _ in spatial])
    if mode == "circular":
        window = fetched(x, wanted, tuple(x.sharding.shape))
        return ShardedTensor(cut_to(window, outputs.box.shape), outputs)
    window = cut_to(fetched(x, wanted), outputs.box.shape)
    if value:
        window = _filled(
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


def _resampled(
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
            local = _chosen(local, axis - len(lengths), chosen)
    return ShardedTensor(cut_to(local, own.shape), outputs)


def _chosen(values: torch.Tensor, axis: int, indices: list[int]) -> torch.Tensor:
    if indices == list(range(values.shape[axis])):
        return values
    return values.index_select(axis, torch.tensor(indices, device=values.device))


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
        x = _check(function, x)
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


# -- other sizes -----------------------------------------------------------------------------------


@rule(*named("pixel_shuffle", torch))
def pixel_shuffle(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """Channels laid out as pixels of a finer image. No message."""
    x = _check(function, args[0] if args else kwargs["input"], 2)
    factor: Any = kwargs.get("upscale_factor", args[1] if len(args) > 1 else None)
    shape = outcome(function, args, kwargs)
    outputs = mapped(x.sharding, shape[-2:], [lambda cut: cut * factor] * 2)
    local = function(of_size(x.to_local(), (1, 1)), factor)
    return ShardedTensor(cut_to(local, outputs.box.shape), outputs)


@rule(*named("pixel_unshuffle", torch))
def pixel_unshuffle(function: Function, args: Arguments, kwargs: Options) -> ShardedTensor:
    """Pixels of a finer image laid out as channels."""
    x = _check(function, args[0] if args else kwargs["input"], 2)
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
    x, mode = _check(function, given["x"]), given["mode"]
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

    return _resampled(x, outputs, [nearest(step) for step in steps])


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
            before = _chosen(local, axis - len(lengths), [i - first[axis] for i in left])
            after = _chosen(local, axis - len(lengths), [i - first[axis] for i in right])
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
