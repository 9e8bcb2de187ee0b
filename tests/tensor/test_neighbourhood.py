"""Padding, convolutions, pooling and resizing of sharded images, against plain ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shardinv import DistributedContext
from tests.harness import WORLD_SIZES, WorkerPool
from tests.tensor.compare import compare, meshes, run_cases

PLANE = (11, 9)
THIN = (3, 2)
VOLUME = (7, 5, 6)


def pads() -> list[tuple[str, Any, tuple[int, ...]]]:
    """Cases without parameters: name, function, spatial shape."""
    cases: list[tuple[str, Any, tuple[int, ...]]] = [
        ("pad zero", lambda x: F.pad(x, (1, 2, 3, 0)), PLANE),
        ("pad value", lambda x: F.pad(x, (0, 2, 1, 4), value=0.5), PLANE),
        ("pad crops", lambda x: F.pad(x, (-2, 1, 3, -4)), PLANE),
        ("pad one axis", lambda x: F.pad(x, (2, 1)), PLANE),
        ("pad channels", lambda x: F.pad(x, (1, 0, 0, 2, 1, 1), value=2.0), PLANE),
        ("reflect", lambda x: F.pad(x, (4, 3, 5, 10), mode="reflect"), PLANE),
        ("replicate", lambda x: F.pad(x, (4, 0, 5, 13), mode="replicate"), PLANE),
        ("circular", lambda x: F.pad(x, (4, 9, 5, 11), mode="circular"), PLANE),
        ("reflect volume", lambda x: F.pad(x, (1, 3, 4, 0, 2, 6), mode="reflect"), VOLUME),
        ("circular volume", lambda x: F.pad(x, (1, 3, 4, 0, 2, 6), mode="circular"), VOLUME),
        ("replicate thin", lambda x: F.pad(x, (3, 2, 1, 4), mode="replicate"), THIN),
        ("reflect thin", lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"), THIN),
        ("roll", lambda x: torch.roll(x, (3, -4), (2, 3)), PLANE),
        ("roll far", lambda x: x.roll(-25, 2), PLANE),
        ("roll lead", lambda x: torch.roll(x, (1, 2), dims=(1, -1)), PLANE),
        ("flip lead", lambda x: x.flip(1), PLANE),
        ("diff", lambda x: torch.diff(x, dim=2).square(), PLANE),
        ("diff twice", lambda x: torch.diff(x, 2), PLANE),
        ("nearest", lambda x: F.interpolate(x, scale_factor=2), PLANE),
        ("nearest size", lambda x: F.interpolate(x, size=(17, 4)), PLANE),
        ("nearest exact", lambda x: F.interpolate(x, (5, 13), mode="nearest-exact"), PLANE),
        ("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), PLANE),
        ("bilinear down", lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), PLANE),
        (
            "bilinear corners",
            lambda x: F.interpolate(x, size=(20, 4), mode="bilinear", align_corners=True),
            PLANE,
        ),
        ("trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), VOLUME),
        ("shuffle", lambda x: F.pixel_shuffle(x, 2), PLANE),
        ("unshuffle", lambda x: F.pixel_unshuffle(x, 2), (10, 6)),
        ("unshuffle 3", lambda x: F.pixel_unshuffle(x, 3), (12, 9)),
        ("average", lambda x: F.avg_pool2d(x, 2), PLANE),
        ("average overlapping", lambda x: F.avg_pool2d(x, (5, 3), 2, (2, 1)), PLANE),
        (
            "average without padding",
            lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            PLANE,
        ),
        ("average divisor", lambda x: F.avg_pool2d(x, 3, divisor_override=5), PLANE),
        ("average volume", lambda x: F.avg_pool3d(x, 2), VOLUME),
        ("maximum", lambda x: F.max_pool2d(x, 3, 2, 1), PLANE),
        ("maximum dilated", lambda x: torch.max_pool2d(x, (3, 2), 1, 0, (2, 3)), PLANE),
        ("maximum volume", lambda x: F.max_pool3d(x, 2, ceil_mode=False), VOLUME),
    ]
    return cases


def convolutions() -> list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]]:
    """Cases with a kernel and a bias: name, function, spatial shape, shape of the kernel."""
    return [
        ("same", lambda x, w, b: F.conv2d(x, w, b, padding=1), PLANE, (2, 4, 3, 3)),
        ("same by name", lambda x, w, b: F.conv2d(x, w, b, padding="same"), PLANE, (2, 4, 4, 3)),
        ("valid", lambda x, w, b: F.conv2d(x, w, b, padding="valid"), PLANE, (2, 4, 5, 9)),
        ("stride", lambda x, w, b: F.conv2d(x, w, b, 2, 1), PLANE, (2, 4, 3, 3)),
        ("strides", lambda x, w, b: F.conv2d(x, w, b, (3, 2), (2, 0)), PLANE, (2, 4, 2, 4)),
        ("dilation", lambda x, w, b: F.conv2d(x, w, b, 1, 3, (2, 3)), PLANE, (2, 4, 3, 3)),
        ("groups", lambda x, w, b: F.conv2d(x, w, b, groups=4, padding=2), PLANE, (4, 1, 5, 5)),
        ("wide", lambda x, w, b: F.conv2d(x, w, b, padding=7), THIN, (2, 4, 9, 7)),
        ("skips", lambda x, w, b: F.conv2d(x, w, b, 4), PLANE, (2, 4, 1, 1)),
        ("volume", lambda x, w, b: F.conv3d(x, w, b, padding=1), VOLUME, (2, 4, 3, 3, 3)),
        (
            "circular",
            lambda x, w, b: F.conv2d(F.pad(x, (2, 2, 2, 2), mode="circular"), w, b),
            PLANE,
            (2, 4, 5, 5),
        ),
        (
            "residual",
            lambda x, w, b: x + F.conv2d(F.relu(F.conv2d(x, w, b, padding=1)), w, padding=1),
            PLANE,
            (4, 4, 3, 3),
        ),
        ("transposed", lambda x, w, b: F.conv_transpose2d(x, w, b), PLANE, (4, 2, 3, 3)),
        ("transposed 2", lambda x, w, b: F.conv_transpose2d(x, w, b, 2), PLANE, (4, 2, 2, 2)),
        (
            "transposed 3",
            lambda x, w, b: F.conv_transpose2d(x, w, b, 3, 1, 2, 2, 2),
            PLANE,
            (4, 1, 4, 3),
        ),
        ("gaps", lambda x, w, b: F.conv_transpose2d(x, w, b, 3, 0, 2), PLANE, (4, 2, 1, 2)),
        (
            "transposed volume",
            lambda x, w, b: F.conv_transpose3d(x, w, b, 2, 1),
            VOLUME,
            (4, 2, 3, 4, 2),
        ),
    ]


def work(ctx: DistributedContext, dtype: torch.dtype) -> None:
    """All cases in all layouts."""
    cases = []
    for name, function, spatial in pads():
        channels = 9 if "unshuffle" not in name else 2
        channels = 8 if name == "shuffle" else channels
        x = torch.randn(2, channels, *spatial, dtype=dtype)
        cases += [
            (name, partial(compare, ctx, name, function, x, mesh=mesh))
            for mesh in meshes(ctx.world_size, len(spatial))
        ]
    for name, function, spatial, kernel in convolutions():
        x = torch.randn(2, 4, *spatial, dtype=dtype)
        w = torch.randn(kernel, dtype=dtype) / 3
        b = torch.randn(kernel[0] if "trans" not in name and name != "gaps" else 2, dtype=dtype)
        for mesh in meshes(ctx.world_size, len(spatial)):
            case = partial(compare, ctx, name, function, x, params=(w, b), mesh=mesh)
            cases.append((name, case))
    run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_against_plain(pool: WorkerPool, world_size: int) -> None:
    pool.run(work, torch.float64, world_size=world_size, timeout=120)
