"""The partition of an image into one box for each rank.

A partition knows the boxes of *all* ranks, so that any rank can work out, without a message, who
holds which pixel. Tiles, which overlap and outnumber the ranks, are in ``tiles``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from shardinv.geometry.box import Box, find_overlap
from shardinv.geometry.placing import crossing_pixels, place_ranks


def balanced_cuts(length: int, parts: int, align: int = 1) -> tuple[int, ...]:
    """Cut ``range(length)`` into ``parts`` intervals as equal as multiples of ``align`` allow.

    Parameters
    ----------
    length
        Pixels along the axis.
    parts
        Number of intervals. Where there are more parts than units of ``align`` pixels, the last
        ones are empty.
    align
        Every interval starts at a multiple of this, unless it is empty.

    Returns
    -------
    tuple of int
        ``parts + 1`` increasing cut points, from 0 to ``length``.

    Raises
    ------
    ValueError
        If ``length`` is negative or ``parts`` or ``align`` is below one.

    Examples
    --------
    >>> balanced_cuts(10, 3)
    (0, 4, 7, 10)
    >>> balanced_cuts(63, 2, align=8)
    (0, 32, 63)
    """
    if length < 0 or parts < 1 or align < 1:
        raise ValueError(
            f"cannot cut {length} pixels into {parts} parts aligned to {align}: "
            "the length must be at least 0, parts and alignment at least 1"
        )
    units = -(-length // align)
    each, more = divmod(units, parts)
    cuts = [0]
    for part in range(parts):
        cuts.append(cuts[-1] + each + (part < more))
    return tuple(min(cut * align, length) for cut in cuts)


NEARLY_AS_GOOD = 1.05
"""How much more work of the largest part is accepted for less that crosses from host to host."""


def choose_mesh(
    shape: Sequence[int],
    ranks: int,
    halo: Sequence[int] | None = None,
    hosts: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Choose how many parts each axis is cut into, so that little surface lies between parts.

    Among all ways to write ``ranks`` as a product over the axes, takes the one whose largest part
    has the fewest pixels with its halo, and among equals the one that cuts the first axes more
    (their cuts are contiguous in memory). On several hosts, the one from which least crosses from
    host to host is taken among those whose largest part is at most 5 % larger than need be.

    Parameters
    ----------
    shape
        Spatial shape of the image in pixels.
    ranks
        Number of parts in all.
    halo
        Width in pixels of the halo that each part needs on each axis (default 1).
    hosts
        The host of each rank, as a number; None for a single host. Which rank gets which cell says
        :func:`~shardinv.geometry.place_ranks`.

    Raises
    ------
    ValueError
        If ``hosts`` has not one entry for each rank.
    """
    if hosts is not None and len(hosts) != ranks:
        raise ValueError(f"hosts has {len(hosts)} entries, there are {ranks} ranks")
    halo = (1,) * len(shape) if halo is None else tuple(halo)

    def factorisations(n: int, axes: int) -> list[tuple[int, ...]]:
        if axes == 1:
            return [(n,)]
        return [
            (d, *rest)
            for d in range(1, n + 1)
            if n % d == 0
            for rest in factorisations(n // d, axes - 1)
        ]

    def cost(mesh: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        largest = [-(-n // m) for n, m in zip(shape, mesh, strict=True)]
        # A part has a halo on its interior sides: none uncut, one of two parts, two of more.
        work = prod(n + h * min(m - 1, 2) for n, h, m in zip(largest, halo, mesh, strict=True))
        return work, tuple(-m for m in mesh)

    meshes = sorted(factorisations(ranks, len(shape)), key=cost)
    if hosts is None or len(set(hosts)) == 1:
        return meshes[0]
    bound = NEARLY_AS_GOOD * cost(meshes[0])[0]

    def crossing(mesh: tuple[int, ...]) -> int:
        return crossing_pixels(mesh, place_ranks(mesh, hosts, shape, halo), hosts, shape, halo)

    return min((mesh for mesh in meshes if cost(mesh)[0] <= bound), key=crossing)


@dataclass(frozen=True)
class Partition:
    """Disjoint boxes, one for each rank, that together are the whole image.

    Parameters
    ----------
    shape
        Spatial shape of the image in pixels.
    boxes
        The box of each rank; some may be empty.

    Raises
    ------
    ValueError
        If the boxes overlap, leave pixels out, or reach outside the image.

    Examples
    --------
    >>> part = Partition.split((100, 64), (3, 1), align=8)
    >>> [str(box) for box in part.boxes]
    ['[0:40, 0:64]', '[40:72, 0:64]', '[72:100, 0:64]']
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "boxes", tuple(self.boxes))
        whole = Box.whole(self.shape)
        filled = [(rank, box) for rank, box in enumerate(self.boxes) if not box.is_empty]
        for rank, box in filled:
            if box not in whole:
                raise ValueError(f"the box {box} of rank {rank} reaches outside the image {whole}")
        overlap = find_overlap(self.boxes)
        if overlap is not None:
            first, second = overlap
            raise ValueError(
                f"the boxes of ranks {first} and {second} overlap: "
                f"{self.boxes[first]} and {self.boxes[second]}"
            )
        covered = sum(box.size for _, box in filled)
        if covered != whole.size:
            raise ValueError(
                f"the boxes hold {covered} pixels, the image of shape {self.shape} has {whole.size}"
            )

    @classmethod
    def split(
        cls,
        shape: Sequence[int],
        mesh: Sequence[int],
        align: int | Sequence[int] = 1,
        order: Sequence[int] | None = None,
    ) -> Partition:
        """Cut an image into a mesh of balanced boxes.

        Parameters
        ----------
        shape
            Spatial shape of the image in pixels.
        mesh
            Number of parts along each axis; their product is the number of ranks.
        align
            Boxes start at multiples of this (one number, or one for each axis).
        order
            ``order[cell]`` is the rank that gets each cell, cells in row-major order; default: the
            ranks in order.

        Raises
        ------
        ValueError
            If ``order`` does not name every rank once.
        """
        aligns = (align,) * len(shape) if isinstance(align, int) else tuple(align)
        cuts = [balanced_cuts(n, m, a) for n, m, a in zip(shape, mesh, aligns, strict=True)]
        intervals = [list(pairwise(c)) for c in cuts]
        boxes = []
        for cell in product(*intervals):
            box = Box(tuple(a for a, _ in cell), tuple(b for _, b in cell))
            boxes.append(box)
        if order is not None:
            if sorted(order) != list(range(len(boxes))):
                raise ValueError(
                    f"order must name each of the ranks 0 to {len(boxes) - 1} once, got "
                    f"{tuple(order)}"
                )
            boxes = [box for _, box in sorted(zip(order, boxes, strict=True))]
        return cls(tuple(shape), tuple(boxes))

    @property
    def ranks(self) -> int:
        """Number of boxes, empty ones included."""
        return len(self.boxes)

    def windows(
        self, halo: Sequence[int], periodic: Sequence[bool] | None = None
    ) -> tuple[Box, ...]:
        """Each rank's box with a halo, clipped to the image except along periodic axes.

        An empty box has an empty window.
        """
        periodic = (False,) * len(self.shape) if periodic is None else tuple(periodic)
        limits = Box(
            tuple(-h if p else 0 for h, p in zip(halo, periodic, strict=True)),
            tuple(n + h if p else n for n, h, p in zip(self.shape, halo, periodic, strict=True)),
        )
        return tuple(box if box.is_empty else box.grow(halo) & limits for box in self.boxes)

    @property
    def imbalance(self) -> float:
        """Pixels of the largest box over the mean: 1 when all are equal."""
        total = sum(box.size for box in self.boxes)
        return max(box.size for box in self.boxes) * self.ranks / total if total else 1.0
