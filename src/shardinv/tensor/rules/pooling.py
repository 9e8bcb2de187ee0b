"""Pooling: each fetches the rows that its output boxes need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.rules.reductions import bind
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding
from shardinv.tensor.windows import (
    Arguments,
    Function,
    Options,
    check_spatial,
    cut_to,
    fetched,
    filled,
    for_each_axis,
    mapped,
    of_size,
    outcome,
    reach_of,
    strided,
    windows,
)


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
    x = check_spatial(function, given["x"], int(function.__name__[8]))
    dims = x.sharding.ndim
    kernel = for_each_axis(given["kernel_size"], dims)
    stride = for_each_axis(given["stride"] or kernel, dims)
    padding = for_each_axis(given["padding"], dims)
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
        check_spatial(function, given["x"], -1)
    x = check_spatial(pool, given["x"], dims)
    kernel, dilation = (
        for_each_axis(given["kernel_size"], dims),
        for_each_axis(given["dilation"], dims),
    )
    stride = for_each_axis(given["stride"] or kernel, dims)
    padding = for_each_axis(given["padding"], dims)
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
    outputs = mapped(x.sharding, shape, [strided(s, r // 2 - p) for s, p, r in steps])
    wanted = windows(outputs, [reach_of(s, p, r) for s, p, r in steps])
    window = fetched(x, wanted)
    if outside and any(padding):
        window = filled(window, wanted[outputs.comm.rank], x.sharding.shape, outside)
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
