"""What the network and the physics of a point compute, in pixels, and which rank does what."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from shardinv.denoise.strides import network_stride
from shardinv.geometry import Box, TileGrid
from shardinv.study.analysis.factors import Work
from shardinv.study.plan.point import Point
from shardinv.tensor import ShardedTensor


class PixelCounter:
    """Counts the pixels that a network is given in its next call, on one rank.

    Of a system that doesn't tell what it cuts, they are seen at the network itself.

    Parameters
    ----------
    network
        Called by whatever tiles it.
    """

    def __init__(self, network: nn.Module) -> None:
        self._stride = network_stride(network)
        self._seen: list[tuple[int, ...]] = []
        self._hook = network.register_forward_pre_hook(
            lambda _, inputs: self._seen.append(tuple(inputs[0].shape))
        )

    def stop(self) -> tuple[int, int]:
        """Count no more; pixels until now, and the same padded to the network's stride."""
        self._hook.remove()
        stride = self._stride
        padded = [
            shape[0] * prod(-(-side // stride) * stride for side in shape[2:])
            for shape in self._seen
        ]
        return sum(shape[0] * prod(shape[2:]) for shape in self._seen), sum(padded)


def work_from(
    point: Point, spatial: Sequence[int], counted: Sequence[tuple[int, int]], stride: int
) -> Work:
    """Work from what was counted on each rank.

    Parameters
    ----------
    point
        Its tile and overlap tell how little would have done.
    spatial
        Shape of the image in pixels.
    counted
        Of each rank, what :meth:`PixelCounter.stop` gave.
    stride
        Of the network.
    """
    axes = len(spatial)
    tile, halo = point.tile or point.size, point.overlap if point.tile else 0
    least = TileGrid.cover(spatial, (tile,) * axes, (halo,) * axes, (stride,) * axes)
    cut = sum(pixels for pixels, _ in counted)
    return Work(
        image=prod(spatial),
        with_halo=min(cut, sum(least.costs)),
        with_quantisation=cut,
        with_padding=sum(padded for _, padded in counted),
        by_rank=tuple(padded for _, padded in counted),
        physics_by_rank=tuple(operator_shares(len(counted), point.frames)),
    )


def tiles_of(denoiser: Any, truth: Tensor, operators: int) -> tuple[Work, list[Box]]:
    """The pixels of a distributed denoiser's windows and their padding, and the tiles' cores."""
    spatial = tuple(truth.shape[2:])
    schedule = denoiser.schedule(
        spatial, truth.sharding if isinstance(truth, ShardedTensor) else None
    )
    stride, tiles = schedule.stride, schedule.grid.tiles
    padded = [prod(-(-side // stride) * stride for side in tile.window.shape) for tile in tiles]
    cut = sum(schedule.grid.costs)
    work = Work(
        image=prod(spatial),
        with_halo=cut,
        with_quantisation=cut,
        with_padding=sum(padded),
        by_rank=tuple(sum(padded[index] for index in hand) for hand in schedule.hands),
        physics_by_rank=tuple(physics_shares(denoiser.ctx.world_size, truth, operators)),
    )
    return work, [tile.core for tile in tiles]


def physics_shares(ranks: int, truth: Tensor, operators: int) -> list[float]:
    """Each rank's share of the physics: of the operators, or of the pixels of a sharded image."""
    if isinstance(truth, ShardedTensor):
        partition = truth.sharding.partition
        return [prod(box.shape) / prod(truth.shape[2:]) for box in partition.boxes]
    return operator_shares(ranks, operators)


def operator_shares(ranks: int, operators: int) -> list[float]:
    """Each rank's share of operators that are dealt as evenly as possible."""
    return [(operators // ranks + (rank < operators % ranks)) / operators for rank in range(ranks)]


def fixed_cores(point: Point, spatial: tuple[int, ...]) -> list[Box]:
    """Tiles of `deepinv.distributed`: of a fixed size, from the corner; the last ones are cut."""
    cores = [Box(tuple(0 for _ in spatial), spatial)]
    for axis, side in enumerate(spatial):
        tile = point.tile or side
        cores = [
            Box(
                (*core.start[:axis], begin, *core.start[axis + 1 :]),
                (*core.stop[:axis], min(side, begin + tile), *core.stop[axis + 1 :]),
            )
            for core in cores
            for begin in range(0, side, tile)
        ]
    return cores
