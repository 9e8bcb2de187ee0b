"""The grid of overlapping tiles that a network is run on.

The grid follows from the image and the tile options alone, never from the number of ranks, so the
result does not depend on how many ranks computed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil

from shardinv.geometry.box import Box
from shardinv.geometry.partition import balanced_cuts


@dataclass(frozen=True, slots=True)
class Tile:
    """A core, which is kept, and the window around it, which is computed.

    The cores of a grid are disjoint and cover the image. The window is the core and its halo on
    interior sides: no halo lies past a border of the image, because what happens at a true border
    is the network's own business.
    """

    core: Box
    window: Box


@dataclass(frozen=True)
class TileGrid:
    """Balanced tiles of an image.

    Parameters
    ----------
    shape
        Spatial shape of the image in pixels.
    tiles
        The tiles, in row-major order.
    halo
        Width of the halo on each axis, in pixels.

    Examples
    --------
    >>> grid = TileGrid.cover((4096,), patch_size=(448,), overlap=(32,), align=(8,))
    >>> len(grid.tiles), max(tile.core.size for tile in grid.tiles)
    (10, 416)
    """

    shape: tuple[int, ...]
    tiles: tuple[Tile, ...]
    halo: tuple[int, ...]

    @classmethod
    def cover(
        cls,
        shape: Sequence[int],
        patch_size: Sequence[int],
        overlap: Sequence[int],
        align: Sequence[int],
    ) -> TileGrid:
        """Cover an image with tiles as equal as possible.

        Parameters
        ----------
        shape
            Spatial shape of the image in pixels.
        patch_size
            Largest core on each axis, in pixels.
        overlap
            Halo on each interior side, in pixels; rounded up to a multiple of ``align``.
        align
            The network's stride: cores and windows start at multiples of it.

        Raises
        ------
        ValueError
            If a size is not positive, a halo negative, or a halo as wide as an image that is cut.
        """
        shape, patch_size, overlap = tuple(shape), tuple(patch_size), tuple(overlap)
        if any(n < 1 for n in shape):
            raise ValueError(f"an image to be tiled needs at least one pixel, got shape {shape}")
        if any(p < 1 for p in patch_size):
            raise ValueError(f"patch_size must be at least 1 pixel on each axis, got {patch_size}")
        if any(h < 0 for h in overlap):
            raise ValueError(f"overlap must be at least 0 pixels on each axis, got {overlap}")
        intervals: list[list[tuple[int, int]]] = []
        halo: list[int] = []
        for n, p, h, a in zip(shape, patch_size, overlap, align, strict=True):
            # A tile smaller than the stride cannot be aligned to it.
            if a > p:
                a = 1 << (p.bit_length() - 1)
            # An image that fits is one tile, also where its end is no multiple of the stride.
            parts = 1 if n <= p else ceil(ceil(n / a) / (p // a))
            if parts > 1 and h >= n:
                raise ValueError(
                    f"overlap {overlap} is as wide as the image, of shape {shape}: every tile "
                    "would be the whole image. Give a smaller overlap, or a patch_size that "
                    "holds the image"
                )
            cuts = balanced_cuts(n, parts, a)
            intervals.append(list(pairwise(cuts)))
            halo.append(-(-h // a) * a)
        whole = Box.whole(shape)
        tiles = []
        for cell in product(*intervals):
            core = Box(tuple(a for a, _ in cell), tuple(b for _, b in cell))
            tiles.append(Tile(core, core.grow(halo) & whole))
        return cls(shape, tuple(tiles), tuple(halo))

    @property
    def work_multiplier(self) -> float:
        """Pixels computed over pixels kept, W: what the halo costs (1 is no repeated work)."""
        return sum(t.window.size for t in self.tiles) / Box.whole(self.shape).size

    @property
    def costs(self) -> tuple[int, ...]:
        """Pixels computed for each tile."""
        return tuple(tile.window.size for tile in self.tiles)
