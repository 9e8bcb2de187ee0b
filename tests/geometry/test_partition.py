"""Cuts, meshes, partitions and the windows around their boxes."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import Box, Partition, balanced_cuts, choose_mesh
from tests.geometry.strategies import pixels


@given(st.integers(0, 200), st.integers(1, 12), st.integers(1, 9))
def test_cuts_cover_and_are_balanced(length: int, parts: int, align: int) -> None:
    cuts = balanced_cuts(length, parts, align)
    assert len(cuts) == parts + 1
    assert (cuts[0], cuts[-1]) == (0, length)
    assert list(cuts) == sorted(cuts)
    filled = [(a, b) for a, b in pairwise(cuts) if b > a]
    assert all(a % align == 0 for a, _ in filled)
    # In units of `align`, the last of which may be cut short by the end of the image.
    units = [-(-(b - a) // align) for a, b in pairwise(cuts)]
    assert max(units) - min(units) <= 1
    # Empty intervals come last.
    assert units == sorted(units, reverse=True)


def test_impossible_cuts_are_refused() -> None:
    for length, parts, align in [(-1, 2, 1), (4, 0, 1), (4, 2, 0)]:
        with pytest.raises(ValueError, match="cannot cut"):
            balanced_cuts(length, parts, align)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=3), st.integers(1, 24), st.integers(0, 20)
)
def test_no_other_mesh_has_a_smaller_largest_part(shape: list[int], ranks: int, halo: int) -> None:
    def largest_window(mesh: tuple[int, ...]) -> int:
        return prod(
            -(-n // m) + halo * (0 if m == 1 else 1 if m == 2 else 2)
            for n, m in zip(shape, mesh, strict=True)
        )

    mesh = choose_mesh(shape, ranks, [halo] * len(shape))
    assert prod(mesh) == ranks
    others = [m for m in product(range(1, ranks + 1), repeat=len(shape)) if prod(m) == ranks]
    assert largest_window(mesh) == min(map(largest_window, others))


def test_meshes_of_common_images() -> None:
    assert choose_mesh((512, 512), 4) == (2, 2)
    assert choose_mesh((512, 512), 2) == (2, 1)  # equal cost: the first axis is cut
    assert choose_mesh((64, 4096), 4) == (1, 4)
    assert choose_mesh((100,), 7) == (7,)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3).flatmap(
        lambda shape: st.tuples(
            st.just(tuple(shape)), st.tuples(*[st.integers(1, 4)] * len(shape)), st.integers(1, 4)
        )
    )
)
def test_split_covers_every_pixel_once(
    problem: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    shape, mesh, align = problem
    part = Partition.split(shape, mesh, align)
    assert part.ranks == prod(mesh)
    held = [pixel for box in part.boxes for pixel in pixels(box)]
    assert sorted(held) == pixels(Box.whole(shape))
    assert all(a % align == 0 for box in part.boxes if not box.is_empty for a in box.start)
    sizes = [box.size for box in part.boxes]
    assert part.imbalance == pytest.approx(max(sizes) * len(sizes) / sum(sizes))


def test_split_goes_through_the_ranks_row_by_row() -> None:
    part = Partition.split((4, 6), (2, 2), align=(1, 3))
    assert [str(box) for box in part.boxes] == [
        "[0:2, 0:3]",
        "[0:2, 3:6]",
        "[2:4, 0:3]",
        "[2:4, 3:6]",
    ]


def test_more_ranks_than_rows_gives_empty_boxes() -> None:
    part = Partition.split((3, 8), (5, 1))
    assert [box.size for box in part.boxes] == [8, 8, 8, 0, 0]
    assert [box.size for box in part.windows((1, 1))] == [16, 24, 16, 0, 0]
    assert part.imbalance == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("boxes", "complaint"),
    [
        ([Box((0,), (3,)), Box((2,), (6,))], "ranks 0 and 1 overlap"),
        ([Box((0,), (3,)), Box((4,), (6,))], "hold 5 pixels"),
        ([Box((0,), (3,)), Box((3,), (7,))], "rank 1 reaches outside"),
        ([Box((-1,), (3,)), Box((3,), (6,))], "rank 0 reaches outside"),
    ],
)
def test_boxes_that_are_no_partition_are_refused(boxes: list[Box], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Partition((6,), tuple(boxes))


@given(
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 10), st.integers(0, 10)),
    st.tuples(st.booleans(), st.booleans()),
)
def test_windows_end_at_the_border_unless_the_axis_wraps(
    shape: tuple[int, int],
    mesh: tuple[int, int],
    halo: tuple[int, int],
    periodic: tuple[bool, bool],
) -> None:
    part = Partition.split(shape, mesh)
    for box, window in zip(part.boxes, part.windows(halo, periodic), strict=True):
        if box.is_empty:
            assert window.is_empty
            continue
        for axis in range(2):
            start, stop = box.start[axis] - halo[axis], box.stop[axis] + halo[axis]
            if not periodic[axis]:
                start, stop = max(start, 0), min(stop, shape[axis])
            assert (window.start[axis], window.stop[axis]) == (start, stop)
    assert part.windows(halo) == part.windows(halo, (False, False))
