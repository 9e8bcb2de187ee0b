"""The undistributed runs that a distributed one is compared with, on rank 0 alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from pydantic import ValidationError
from torch import Tensor

from shardinv.denoise import DistributedProcessing
from shardinv.denoise.memory import memory_left, show_memory
from shardinv.exchange import crop
from shardinv.geometry import TileGrid
from shardinv.problems import psnr, relative_error
from shardinv.study.checks.iterating import in_precision, run
from shardinv.study.checks.live_bytes import LiveBytes
from shardinv.study.checks.matching import Distance, tolerance
from shardinv.study.checks.reach import reach_of
from shardinv.study.checks.threads import usable_cores
from shardinv.study.measuring.build import Blocks, build
from shardinv.study.plan.point import Point

_PROBE = {"photograph": 128, "volume": 32}
_SMALL = 2
"""Probes across: a point no larger than so many along each axis is compared as it is."""
_MARGIN = 1.5
"""What kernels take for themselves and allocators round up to."""


def undistributed(point: Point, size: int | None = None) -> Point:
    """The same problem for DeepInverse alone, perhaps of another size.

    Raises
    ------
    ValidationError
        If the size is none that the problem can have.
    """
    alone = {"system": "deepinv", "ranks": 1, "layout": "replicated", "quality": False}
    return Point(**{**point.model_dump(), **alone, "size": size or point.size})


@dataclass(frozen=True)
class Choice:
    """What is compared with undistributed runs.

    Parameters
    ----------
    point
        The point itself, or one of a smaller size; None where even two tiles along each axis are
        too much, and without a seam there is nothing to compare.
    reason
        Why it isn't the point itself.
    """

    point: Point | None
    reason: str = ""


def choose(point: Point, iterations: int, seconds: float, device: torch.device) -> Choice:
    """Choose so much of a problem's middle that undistributed runs fit and end in time.

    Parameters
    ----------
    point
        A distributed point.
    iterations
        Of each of the two runs.
    seconds
        That both may take together.
    device
        Where they run.
    """
    probe = _largest(point, min(point.size, _PROBE[point.problem]), 1, lambda p: True)
    if probe is None or point.size <= _SMALL * probe.size:
        return Choice(point)
    blocks = build(undistributed(probe), None)
    # Not of the build: a photograph is read whole, whatever is cut out of it.
    with LiveBytes() as live:
        run(blocks, blocks.denoiser, 1)
    needed = live.most + sum(t.nbytes for t in (blocks.truth, blocks.start, *blocks.y))
    with _all_cores(point):
        run(blocks, blocks.denoiser, 1)
        began = time.perf_counter()
        run(blocks, blocks.denoiser, 1)
        taken = time.perf_counter() - began
    scale, left = point.pixels / probe.pixels, memory_left(device)
    wanted, lasting = _MARGIN * needed * scale, 2 * iterations * taken * scale
    if wanted <= left and lasting <= seconds:
        return Choice(point)
    reason = f"undistributed runs of the whole would take {lasting:.0f} s"
    if wanted > left:
        reason = (
            f"undistributed, the whole needs {show_memory(wanted)}, left are {show_memory(left)}"
        )
    most = point.pixels * min(left / wanted, seconds / lasting)
    least = 2 * point.tile if point.tile is not None and 2 * point.tile < point.size else 16
    return Choice(_largest(point, point.size, least, lambda p: p.pixels <= most), reason)


def _largest(point: Point, most: int, least: int, good: Callable[[Point], bool]) -> Point | None:
    for size in range(most, least - 1, -1):
        try:
            found = Point(**{**point.model_dump(), "size": size})
        except ValidationError:
            continue
        if good(found):
            return found
    return None


def on_tiles(network: Callable[[Tensor, float], Tensor], grid: TileGrid) -> Callable[..., Tensor]:
    """A network on the tiles of a grid, one after the other: no rank, no message."""

    def denoise(x: Tensor, sigma: float) -> Tensor:
        result = torch.empty_like(x)
        for tile in grid.tiles:
            answer = network(crop(x, tile.window).contiguous(), sigma)
            crop(result, tile.core).copy_(crop(answer, tile.core, tile.window))
        return result

    return denoise


@dataclass(frozen=True)
class Outcome:
    """How far the runs are from each other.

    Parameters
    ----------
    start
        Relative error of the distributed run's first iterate, made from the measurements alone.
    distribution
        From the same tiles, undistributed, to the distributed run.
    halo
        From the network on the whole image to those tiles; None where there is one tile.
    reach, whole
        How far the network was seen to look, and whether it looks no further.
    mended
        The same as ``halo``, with a halo as wide as that; None where all is well already.
    """

    start: float
    distribution: Distance
    halo: Distance | None = None
    reach: int = 0
    whole: bool = True
    mended: Distance | None = None


def compare(
    point: Point, denoiser: DistributedProcessing, start: Tensor, last: Tensor, iterations: int
) -> Outcome:
    """Run both references and compare.

    Parameters
    ----------
    point
        What was run distributed.
    denoiser
        Its network, for the tiles.
    start, last
        The distributed run's first iterate and that after some iterations, whole.
    iterations
        How many.
    """
    blocks = build(undistributed(point), None)
    # From the system for DeepInverse alone, the network is that of the whole image.
    network = in_precision(blocks.denoiser, point.precision)
    options, stride, spatial = denoiser.options, denoiser.stride, tuple(start.shape[2:])
    grid = options.grid(spatial, stride)
    with _all_cores(point):
        tiled = run(blocks, on_tiles(network, grid), iterations)
        first, distribution = relative_error(start, blocks.start), _distance(last, tiled, blocks)
        if len(grid.tiles) == 1:
            return Outcome(first, distribution)
        image = run(blocks, network, iterations)
        halo = _distance(tiled, image, blocks)
        reach, whole = reach_of(blocks.denoiser, start, point.sigma_start, stride)
        mended = None
        if halo.relative > tolerance(point.precision) and max(grid.halo) < reach < min(spatial):
            wider = replace(options, overlap=reach).grid(spatial, stride)
            mended = _distance(run(blocks, on_tiles(network, wider), iterations), image, blocks)
    return Outcome(first, distribution, halo, reach, whole, mended)


def _distance(image: Tensor, reference: Tensor, blocks: Blocks) -> Distance:
    difference = psnr(image, blocks.truth) - psnr(reference, blocks.truth)
    return Distance(relative_error(image, reference), difference)


@contextmanager
def _all_cores(point: Point) -> Iterator[None]:
    """The other ranks wait, and their cores are free."""
    torch.set_num_threads(max(point.threads, len(usable_cores())))
    try:
        yield
    finally:
        torch.set_num_threads(point.threads)
