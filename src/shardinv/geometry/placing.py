"""Which rank gets which cell of a mesh: ranks of one host get cells that lie together.

Then little of what the cells exchange goes from host to host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import prod


def place_ranks(
    mesh: Sequence[int],
    hosts: Sequence[int],
    shape: Sequence[int] | None = None,
    halo: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Give every cell of a mesh a rank, such that little crosses from host to host.

    Tried are blocks of cells, one for each host, where all hosts have as many ranks and the mesh
    can be cut so, and otherwise the ranks, sorted by host, along rows of the mesh in every order of
    its axes. Of those the one is taken from which fewest pixels cross.

    Parameters
    ----------
    mesh
        Number of cells along each axis.
    hosts
        The host of each rank, as a number.
    shape
        Spatial shape of the image in pixels; default: square cells.
    halo
        Width in pixels of what neighbours exchange along each axis (default 1).

    Returns
    -------
    tuple of int
        ``order[cell]`` is the rank of each cell, cells in row-major order. With a single host the
        ranks are in order.

    Raises
    ------
    ValueError
        If there is not one cell for each rank.

    Examples
    --------
    >>> place_ranks((2, 4), [0, 0, 0, 0, 1, 1, 1, 1])
    (0, 1, 4, 5, 2, 3, 6, 7)
    """
    mesh = tuple(mesh)
    if prod(mesh) != len(hosts):
        raise ValueError(
            f"the mesh {mesh} has {prod(mesh)} cells, there are {len(hosts)} ranks: give a mesh "
            "with a cell for each"
        )
    if len(set(hosts)) == 1:
        return tuple(range(len(hosts)))
    ranks = sorted(range(len(hosts)), key=lambda rank: (hosts[rank], rank))

    def crossing(order: tuple[int, ...]) -> int:
        return crossing_pixels(mesh, order, hosts, shape, halo)

    # The first of equals: blocks before rows.
    orders = [
        tuple(rank for _, rank in sorted(zip(walk, ranks, strict=True)))
        for walk in (*_by_blocks(mesh, hosts), *_by_rows(mesh))
    ]
    return min(orders, key=crossing)


def crossing_pixels(
    mesh: Sequence[int],
    order: Sequence[int],
    hosts: Sequence[int],
    shape: Sequence[int] | None = None,
    halo: Sequence[int] | None = None,
) -> int:
    """Pixels that go from host to host when every cell fetches its halo, corners not counted.

    Parameters
    ----------
    mesh, hosts, shape, halo
        As for :func:`place_ranks`.
    order
        The rank of each cell.
    """
    mesh = tuple(mesh)
    sides = [1] * len(mesh) if shape is None else [-(-n // m) for n, m in zip(shape, mesh)]
    widths = (1,) * len(mesh) if halo is None else tuple(halo)
    cells = list(product(*(range(m) for m in mesh)))
    host = {cell: hosts[rank] for cell, rank in zip(cells, order, strict=True)}
    total = 0
    for axis in range(len(mesh)):
        # Both of two neighbours get a halo. One of a single cell is a neighbour of none.
        face = 2 * widths[axis] * prod(n for k, n in enumerate(sides) if k != axis)
        for cell in cells:
            beyond = (*cell[:axis], cell[axis] + 1, *cell[axis + 1 :])
            if beyond in host and host[beyond] != host[cell]:
                total += face
    return total


def _by_blocks(mesh: tuple[int, ...], hosts: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Ways through the cells that stay in a block of them for as long as a host has ranks."""
    counts = {list(hosts).count(host) for host in set(hosts)}
    if len(counts) > 1:
        return
    size = counts.pop()
    for block in product(*([d for d in range(1, m + 1) if m % d == 0] for m in mesh)):
        if prod(block) == size:
            outer = product(*(range(m // b) for m, b in zip(mesh, block)))
            inner = list(product(*(range(b) for b in block)))
            yield [
                tuple(o * b + i for o, b, i in zip(place, block, within))
                for place in outer
                for within in inner
            ]


def _by_rows(mesh: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Ways through the cells along rows, for every order of the axes."""
    cells = list(product(*(range(m) for m in mesh)))
    for axes in permutations(range(len(mesh))):
        yield sorted(cells, key=lambda cell, axes=axes: tuple(cell[a] for a in axes))  # type: ignore[misc]
