"""How an image is cut into tiles, and which rank computes which, in which batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardinv.denoise.windows import frame_of
from shardinv.geometry import (
    Box,
    Layout,
    Partition,
    Tile,
    TileGrid,
    deal,
    deal_near,
    imbalance,
    plan_transfers,
)

GPU_BATCH = 2**20
"""Pixels in one call of a network on a GPU, where the number of tiles is not given."""


@dataclass(frozen=True)
class TilingOptions:
    """How an image is cut into tiles for a network.

    Parameters
    ----------
    patch_size
        Largest core of a tile in pixels: one number, or one for each tiled axis.
    overlap
        Halo in pixels on each interior side of a tile: one number, or one for each tiled axis.
        Rounded up to the network's stride.
    max_batch_size
        Most tiles in one call of the network; None chooses: one on a CPU, where more is no faster,
        and about a million pixels on a GPU.
    tiling_dims
        Axes that are cut, of ``(B, C, *spatial)``: one, several, or None for all spatial ones.
    checkpoint_batches
        Whether a backward pass recomputes activations batch by batch: ``"always"``, ``"never"``,
        or ``"auto"``, where keeping those of all batches takes more than ``memory``.
    memory
        Bytes for the activations of a call, for ``"auto"``; None takes half of what is left.
    stride
        Cores and windows start at multiples of it; None takes what is known of the network.
    """

    patch_size: int | tuple[int, ...] = 256
    overlap: int | tuple[int, ...] = 64
    max_batch_size: int | None = None
    tiling_dims: int | tuple[int, ...] | None = None
    checkpoint_batches: str = "auto"
    stride: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("patch_size", 1), ("overlap", 0)):
            value = getattr(self, name)
            values = value if isinstance(value, (tuple, list)) else (value,)
            if not values or not all(isinstance(v, int) and v >= least for v in values):
                raise ValueError(
                    f"{name} must be a whole number of pixels, at least {least}, or one for each "
                    f"tiled axis, got {value!r}"
                )
        if self.max_batch_size is not None and not (
            isinstance(self.max_batch_size, int) and self.max_batch_size >= 1
        ):
            raise ValueError(
                f"max_batch_size must be a whole number of at least 1 or None, "
                f"got {self.max_batch_size!r}"
            )
        if self.checkpoint_batches not in ("auto", "always", "never"):
            raise ValueError(
                "checkpoint_batches must be 'auto', 'always' or 'never', "
                f"got {self.checkpoint_batches!r}"
            )
        if self.stride is not None and not (isinstance(self.stride, int) and self.stride >= 1):
            raise ValueError(
                f"stride must be a whole number of pixels, at least 1, or None, got {self.stride!r}"
            )
        axes = self.tiling_dims if isinstance(self.tiling_dims, (tuple, list)) else ()
        if not isinstance(self.tiling_dims, (int, type(None))) and not (
            axes and all(isinstance(axis, int) for axis in axes)
        ):
            raise ValueError(
                "tiling_dims must be an axis of (B, C, *spatial), several, or None for all spatial "
                f"ones, got {self.tiling_dims!r}"
            )

    def tiled_axes(self, ndim: int) -> tuple[int, ...]:
        """The axes that are cut, of an image with ``ndim`` axes, in the order given."""
        if self.tiling_dims is None:
            return tuple(range(2, ndim))
        given = (
            self.tiling_dims if isinstance(self.tiling_dims, (tuple, list)) else (self.tiling_dims,)
        )
        axes = tuple(axis + ndim if axis < 0 else axis for axis in given)
        if len(set(axes)) != len(axes) or not all(2 <= axis < ndim for axis in axes):
            raise ValueError(
                f"tiling_dims {self.tiling_dims} must name distinct spatial axes of an image with "
                f"{ndim} axes (B, C, *spatial): 2 to {ndim - 1}"
            )
        return axes

    def grid(self, spatial: Sequence[int], stride: int) -> TileGrid:
        """The tiles of an image of the given spatial shape. Axes that are not cut are whole."""
        axes = self.tiled_axes(len(spatial) + 2)
        patch, halo = list(spatial), [0] * len(spatial)
        align = [1] * len(spatial)
        for name, target in (("patch_size", patch), ("overlap", halo)):
            value = getattr(self, name)
            values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * len(axes)
            if len(values) != len(axes):
                raise ValueError(
                    f"{name} {value} has {len(values)} numbers, {len(axes)} axes are tiled"
                )
            for axis, number in zip(axes, values, strict=True):
                target[axis - 2] = number
        for axis in axes:
            align[axis - 2] = stride
        return TileGrid.cover(spatial, patch, halo, align)

    def batch_size(self, window: Box, device: str) -> int:
        """Most tiles with this window in one call of the network on a kind of device."""
        if self.max_batch_size is not None:
            return self.max_batch_size
        return 1 if device == "cpu" else max(1, GPU_BATCH // window.size)


@dataclass(frozen=True)
class Schedule:
    """The tiles of one image shape, and who computes which, in which batches.

    Parameters
    ----------
    grid
        The tiles.
    stride
        What their starts are multiples of, in pixels.
    hands
        The indices of each rank's tiles.
    layout
        The cores of each rank's tiles, in the order in which it computes them.
    batches
        This rank's tiles, those of one call of the network together.
    fetched
        The boxes of a sharded image that each rank needs for its tiles beside its own.
    partition
        The boxes that the image lies in; None where every rank holds all of it.
    """

    grid: TileGrid
    stride: int
    hands: tuple[tuple[int, ...], ...]
    layout: Layout
    batches: tuple[tuple[Tile, ...], ...]
    fetched: Layout
    partition: Partition | None = None

    @classmethod
    def make(
        cls,
        options: TilingOptions,
        spatial: Sequence[int],
        stride: int,
        *,
        ranks: int,
        rank: int,
        device: str,
        partition: Partition | None = None,
    ) -> Schedule:
        """Deal the tiles of an image to the ranks, by the pixels that each computes.

        Where the image is sharded, a rank gets the tiles that lie in its box, as far as that leaves
        the ranks with equal work.
        """
        grid = options.grid(spatial, stride)
        if partition is None:
            hands = deal(grid.costs, ranks)
        else:
            held = [[(tile.core & box).size for box in partition.boxes] for tile in grid.tiles]
            hands = deal_near(grid.costs, held)
        batches: list[tuple[Tile, ...]] = []
        boxes = partition.boxes if partition is not None else (None,) * ranks
        for tiles in _in_turn(grid, hands[rank], boxes[rank]):
            most = options.batch_size(tiles[0].window, device)
            batches += [tuple(tiles[k : k + most]) for k in range(0, len(tiles), most)]
        layout = tuple(
            tuple(tile.core for tiles in _in_turn(grid, hand, box) for tile in tiles)
            for hand, box in zip(hands, boxes, strict=True)
        )
        fetched: Layout = ((),) * ranks
        if partition is not None:
            fetched = tuple(
                frame_of([grid.tiles[i].window for i in hand], box)
                for hand, box in zip(hands, partition.boxes, strict=True)
            )
        return cls(grid, stride, hands, layout, tuple(batches), fetched, partition)

    @property
    def pixels_sent(self) -> list[tuple[int, int]]:
        """Of a sharded image: what each rank sends a call, of the halo and of the result."""
        assert self.partition is not None
        home: Layout = tuple((box,) for box in self.partition.boxes)
        out = plan_transfers(home, self.fetched)
        back = plan_transfers(home, self.layout).reversed
        return [(out.pixels_sent(rank), back.pixels_sent(rank)) for rank in range(len(home))]

    def describe(self) -> str:
        """Tiles, halo, work multiplier W, who has what, values sent a call."""
        grid, ranks = self.grid, len(self.hands)
        largest = max((tile.core for tile in grid.tiles), key=lambda box: box.size)
        pixels = Box.whole(grid.shape).size
        lines = [
            f"network on {len(grid.tiles)} tiles of an image of {_times(grid.shape)} px",
            f"  largest tile {_times(largest.shape)} px, halo {_times(grid.halo)} px on interior "
            f"sides, starts at multiples of {self.stride} px",
            f"  work multiplier W = {grid.work_multiplier:.3f} (pixels computed / pixels kept)",
        ]
        for rank, hand in enumerate(self.hands):
            work = sum(grid.costs[index] for index in hand)
            lines.append(f"  rank {rank}: {len(hand)} tiles, {work} px")
        lines.append(f"  imbalance {imbalance(grid.costs, self.hands):.3f} (1 is even)")
        if self.partition is None:
            lines.append(
                f"  one gather a call: {(ranks - 1) / ranks * pixels:.0f} values a channel and "
                "image sent by each rank"
            )
        else:
            lines.append("  values a channel and image sent a call:")
            for rank, (halo, result) in enumerate(self.pixels_sent):
                lines.append(f"    rank {rank}: {halo} of the halo, {result} of the result")
        return "\n".join(lines)


def _in_turn(grid: TileGrid, hand: Sequence[int], box: Box | None) -> list[list[Tile]]:
    """A rank's tiles in the order in which it computes them: those of one shape together.

    Those that need nothing but the rank's own box come first: meanwhile the halo is on its way.
    """
    groups: dict[tuple[bool, tuple[int, ...]], list[Tile]] = {}
    for index in hand:
        tile = grid.tiles[index]
        waits = box is not None and tile.window not in box
        groups.setdefault((waits, tile.window.shape), []).append(tile)
    return [tiles for (_, _), tiles in sorted(groups.items(), key=lambda group: group[0][0])]


def _times(shape: Sequence[int]) -> str:
    return " × ".join(str(n) for n in shape)
