"""Convolutions and their transposes: each fetches the rows that its output boxes need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from shardinv.tensor.registry import rule
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
    for_each_axis,
    kernels_of,
    mapped,
    of_size,
    outcome,
    reach_of,
    strided,
    windows,
)


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
    x = check_spatial(function, given["x"], int(function.__name__[4]))
    shape = outcome(function, args, kwargs)
    dims = x.sharding.ndim
    stride, dilation = for_each_axis(given["stride"], dims), for_each_axis(given["dilation"], dims)
    reach = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    if given["padding"] == "same":
        padding: tuple[int, ...] = tuple(r // 2 for r in reach)
    elif given["padding"] == "valid":
        padding = (0,) * dims
    else:
        padding = for_each_axis(given["padding"], dims)
    outputs = mapped(
        x.sharding,
        shape[-dims:],
        [strided(s, r // 2 - p) for s, r, p in zip(stride, reach, padding, strict=True)],
    )
    needs = [reach_of(s, p, r) for s, p, r in zip(stride, padding, reach, strict=True)]
    weight, bias = kernels_of(function, x, weight, given["bias"])
    window = of_size(fetched(x, windows(outputs, needs)), [r + 1 for r in reach])
    local = function(window, weight, bias, stride, 0, dilation, given["groups"])
    return ShardedTensor(cut_to(local, outputs.box.shape), outputs)


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
    x = check_spatial(function, given["x"], int(function.__name__[14]))
    shape = outcome(function, args, kwargs)
    dims = x.sharding.ndim
    stride, padding = for_each_axis(given["stride"], dims), for_each_axis(given["padding"], dims)
    dilation = for_each_axis(given["dilation"], dims)
    reach = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    steps = list(zip(stride, padding, reach, strict=True))
    outputs = mapped(x.sharding, shape[-dims:], [_spread(s, p, r) for s, p, r in steps])
    wanted = windows(outputs, [_contributors(s, p, r) for s, p, r in steps])
    weight, bias = kernels_of(function, x, weight, given["bias"])
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
