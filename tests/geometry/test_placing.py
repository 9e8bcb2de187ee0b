"""Ranks of one host in neighbouring cells, and the mesh from which little crosses between hosts."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import Partition, choose_mesh, place_ranks, plan_transfers
from shardinv.geometry.partition import NEARLY_AS_GOOD
from shardinv.geometry.placing import crossing_pixels

Problem = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@st.composite
def placements(draw: st.DrawFn) -> Problem:
    """Draw a mesh, the host of every rank, the image's shape and halo."""
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    size = prod(mesh)
    hosts = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size).map(tuple))
    shape = tuple(m * draw(st.integers(3, 9)) for m in mesh)
    halo = draw(st.tuples(*[st.integers(0, 3)] * len(mesh)))
    return mesh, hosts, shape, halo


def cells_of(mesh: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(product(*(range(m) for m in mesh)))


@given(placements())
def test_every_rank_gets_a_cell_and_rows_are_never_better(problem: Problem) -> None:
    mesh, hosts, shape, halo = problem
    order = place_ranks(mesh, hosts, shape, halo)
    assert sorted(order) == list(range(prod(mesh)))
    by_host = tuple(sorted(range(len(hosts)), key=lambda rank: (hosts[rank], rank)))
    assert crossing_pixels(mesh, order, hosts, shape, halo) <= crossing_pixels(
        mesh, by_host, hosts, shape, halo
    )
    # Within a host, ranks are in order.
    for host in set(hosts):
        mine = [rank for rank in order if hosts[rank] == host]
        assert sorted(mine) == [rank for rank in range(len(hosts)) if hosts[rank] == host]


@given(placements())
def test_crossing_pixels_are_those_of_the_plan(problem: Problem) -> None:
    mesh, hosts, shape, halo = problem
    order = place_ranks(mesh, hosts, shape, halo)
    # One axis at a time: corners are not counted.
    crossing = 0
    for axis in range(len(mesh)):
        width = tuple(halo[axis] if k == axis else 0 for k in range(len(mesh)))
        part = Partition.split(shape, mesh, order=order)
        windows = tuple((window,) for window in part.windows(width))
        plan = plan_transfers(tuple((box,) for box in part.boxes), windows)
        crossing += sum(
            t.source_box.size
            for t in plan.transfers
            if hosts[t.source_rank] != hosts[t.target_rank]
        )
    assert crossing_pixels(mesh, order, hosts, shape, halo) == crossing


@pytest.mark.parametrize(
    ("mesh", "per_host", "blocks"),
    [((2, 4), 4, (2, 2)), ((4, 2), 4, (2, 2)), ((4, 4), 4, (2, 2)), ((2, 2, 2), 4, (1, 2, 2))],
)
def test_a_host_gets_a_block_of_cells(
    mesh: tuple[int, ...], per_host: int, blocks: tuple[int, ...]
) -> None:
    size = prod(mesh)
    hosts = [rank // per_host for rank in range(size)]
    order = place_ranks(mesh, hosts)
    for host in range(size // per_host):
        mine = [cell for cell, rank in zip(cells_of(mesh), order) if hosts[rank] == host]
        extents = tuple(max(axis) - min(axis) + 1 for axis in zip(*mine))
        assert extents == blocks


def test_a_single_host_keeps_the_order_of_the_ranks() -> None:
    assert place_ranks((2, 3), [7] * 6) == (0, 1, 2, 3, 4, 5)


def test_ranks_dealt_to_hosts_in_turn_are_put_together() -> None:
    assert place_ranks((4,), [0, 1, 0, 1]) == (0, 2, 1, 3)


def test_hosts_of_different_sizes() -> None:
    order = place_ranks((2, 3), [0, 0, 1, 1, 1, 1])
    assert crossing_pixels((2, 3), order, [0, 0, 1, 1, 1, 1]) == 4  # one column and two columns


@given(
    st.lists(st.integers(8, 300), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_mesh_crosses_least_among_those_of_little_work(
    shape: list[int], per_host: int, count: int, width: int
) -> None:
    ranks, halo = per_host * count, (width,) * len(shape)
    hosts = [rank // per_host for rank in range(ranks)]

    def work(mesh: tuple[int, ...]) -> int:
        return prod(-(-n // m) + width * min(m - 1, 2) for n, m in zip(shape, mesh))

    def crossing(mesh: tuple[int, ...]) -> int:
        return crossing_pixels(mesh, place_ranks(mesh, hosts, shape, halo), hosts, shape, halo)

    mesh = choose_mesh(shape, ranks, halo, hosts)
    meshes = [m for m in product(range(1, ranks + 1), repeat=len(shape)) if prod(m) == ranks]
    bound = NEARLY_AS_GOOD * min(map(work, meshes))
    assert prod(mesh) == ranks
    assert work(mesh) <= bound
    if count == 1:
        assert mesh == choose_mesh(shape, ranks, halo)
    else:
        assert crossing(mesh) == min(crossing(m) for m in meshes if work(m) <= bound)


def test_meshes_of_two_hosts() -> None:
    hosts = [0, 0, 0, 0, 1, 1, 1, 1]
    # Across the short side of the image, whichever it is.
    for shape in ((512, 512), (512, 1024), (1024, 512)):
        mesh = choose_mesh(shape, 8, hosts=hosts)
        order = place_ranks(mesh, hosts, shape)
        assert sorted(mesh) == [2, 4]
        assert crossing_pixels(mesh, order, hosts, shape) == 2 * 512


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the mesh \(2, 2\) has 4 cells, there are 3 ranks"):
        place_ranks((2, 2), [0, 0, 1])
    with pytest.raises(ValueError, match="hosts has 3 entries, there are 4 ranks"):
        choose_mesh((8, 8), 4, hosts=[0, 0, 1])
    for order in [(0, 1, 2), (0, 1, 2, 2), (1, 2, 3, 4)]:
        with pytest.raises(ValueError, match="order must name each of the ranks 0 to 3 once"):
            Partition.split((4, 4), (2, 2), order=order)


def test_split_gives_each_cell_to_the_rank_of_the_order() -> None:
    plain, ordered = (
        Partition.split((5, 7), (2, 2)),
        Partition.split((5, 7), (2, 2), 1, (2, 0, 3, 1)),
    )
    assert [ordered.boxes[rank] for rank in (2, 0, 3, 1)] == list(plain.boxes)
