"""Plans of transfers, against the matrix of the linear map that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import Box, Layout, Partition, Plan, plan_transfers
from tests.geometry.strategies import boxes, pixels


def numbered(layout: Layout) -> dict[tuple[int, int], np.ndarray]:
    """Number the pixels of all boxes of a layout: one array for each rank and index."""
    numbers, count = {}, 0
    for rank, held in enumerate(layout):
        for index, box in enumerate(held):
            numbers[rank, index] = np.arange(count, count + box.size).reshape(box.shape)
            count += box.size
    return numbers


def count_pixels(layout: Layout) -> int:
    return sum(box.size for held in layout for box in held)


def plan_matrix(plan: Plan) -> np.ndarray:
    """The map from all source pixels to all target pixels, as the plan's blocks make it."""
    sources, targets = numbered(plan.sources), numbered(plan.targets)
    matrix = np.zeros((count_pixels(plan.targets), count_pixels(plan.sources)), dtype=int)
    for t in plan.transfers:
        origin = plan.sources[t.source_rank][t.source_index]
        target = plan.targets[t.target_rank][t.target_index]
        assert t.source_box in origin
        assert t.target_box in target
        assert t.source_box.shape == t.target_box.shape
        columns = sources[t.source_rank, t.source_index][t.source_box.slices(origin)]
        rows = targets[t.target_rank, t.target_index][t.target_box.slices(target)]
        assert rows.size > 0
        matrix[rows.ravel(), columns.ravel()] += 1
    return matrix


def fetch_matrix(
    sources: Layout, targets: Layout, periods: tuple[int | None, ...] | None
) -> np.ndarray:
    """The same map by definition: each target pixel looks up where its value is."""
    columns = {}
    for (rank, index), numbers in numbered(sources).items():
        columns |= dict(zip(pixels(sources[rank][index]), numbers.ravel(), strict=True))
    matrix = np.zeros((count_pixels(targets), count_pixels(sources)), dtype=int)
    for (rank, index), numbers in numbered(targets).items():
        for pixel, row in zip(pixels(targets[rank][index]), numbers.ravel(), strict=True):
            wrapped = pixel
            if periods is not None:
                wrapped = tuple(
                    c if period is None else c % period
                    for c, period in zip(pixel, periods, strict=True)
                )
            if wrapped in columns:
                matrix[row, columns[wrapped]] = 1
    return matrix


@st.composite
def problems(draw: st.DrawFn) -> tuple[Layout, Layout, tuple[int | None, ...] | None]:
    """Draw sources (a shuffled partition, some boxes left out), targets anywhere, and periods."""
    ndim = draw(st.integers(1, 2))
    shape = draw(st.tuples(*[st.integers(1, 5)] * ndim))
    ranks = draw(st.integers(1, 4))
    pieces = list(Partition.split(shape, draw(st.tuples(*[st.integers(1, 3)] * ndim))).boxes)
    owners = draw(st.lists(st.integers(0, ranks), min_size=len(pieces), max_size=len(pieces)))
    sources = tuple(
        tuple(piece for piece, owner in zip(pieces, owners) if owner == rank)
        for rank in range(ranks)
    )
    # Up to three times as long as the image: halos wider than it included.
    target = boxes(ndim, low=-8, high=8, longest=16)
    targets = tuple(tuple(draw(st.lists(target, max_size=2))) for _ in range(ranks))
    wraps = draw(st.one_of(st.none(), st.tuples(*[st.booleans()] * ndim)))
    periods = None
    if wraps is not None:
        periods = tuple(n if wrap else None for n, wrap in zip(shape, wraps, strict=True))
    return sources, targets, periods


@given(problems())
def test_plan_fetches_every_pixel_and_its_reverse_is_the_transpose(
    problem: tuple[Layout, Layout, tuple[int | None, ...] | None],
) -> None:
    sources, targets, periods = problem
    plan = plan_transfers(sources, targets, periods)
    expected = fetch_matrix(sources, targets, periods)
    np.testing.assert_array_equal(plan_matrix(plan), expected)
    np.testing.assert_array_equal(plan_matrix(plan.reversed), expected.T)
    np.testing.assert_array_equal(plan_matrix(plan.reversed.reversed), expected)


@given(problems())
def test_messages_are_the_blocks_in_order(
    problem: tuple[Layout, Layout, tuple[int | None, ...] | None],
) -> None:
    plan = plan_transfers(*problem)
    ranks = range(len(plan.sources))
    messages = {(i, j): plan.between(i, j) for i in ranks for j in ranks}
    assert sum(map(len, messages.values())) == len(plan.transfers)
    for (source, target), message in messages.items():
        ours = [t for t in plan.transfers if (t.source_rank, t.target_rank) == (source, target)]
        assert list(message) == ours
        # Both ends, and the way back, go through the blocks in the same order.
        back = plan.reversed.between(target, source)
        assert [t.reversed() for t in back] == list(message)
    for rank in ranks:
        sent = sum(
            t.source_box.size
            for (source, target), message in messages.items()
            if source == rank != target
            for t in message
        )
        assert plan.pixels_sent(rank) == sent


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 2)),
    st.tuples(st.integers(0, 7), st.integers(0, 7)),
    st.tuples(st.booleans(), st.booleans()),
)
def test_halos_are_those_of_a_padded_image(
    shape: tuple[int, int],
    mesh: tuple[int, int],
    halo: tuple[int, int],
    periodic: tuple[bool, bool],
) -> None:
    part = Partition.split(shape, mesh)
    sources = tuple((box,) for box in part.boxes)
    targets = tuple((window,) for window in part.windows(halo, periodic))
    periods = tuple(n if wrap else None for n, wrap in zip(shape, periodic, strict=True))
    plan = plan_transfers(sources, targets, periods)
    image = np.arange(1, shape[0] * shape[1] + 1).reshape(shape)
    held = np.concatenate([image[box.slices()].ravel() for box in part.boxes])
    fetched = plan_matrix(plan) @ held
    padded = image
    for axis in range(2):
        margin = [(0, 0), (0, 0)]
        margin[axis] = (halo[axis], halo[axis])
        padded = np.pad(padded, margin, mode="wrap" if periodic[axis] else "constant")
    origin = Box.whole(shape).grow(halo)
    expected = [padded[window.slices(origin)].ravel() for (window,) in targets]
    np.testing.assert_array_equal(fetched, np.concatenate(expected))


def test_everything_to_everyone_sends_each_box_once_to_each_other_rank() -> None:
    part = Partition.split((8, 6), (3, 1))
    whole = Box.whole((8, 6))
    plan = plan_transfers(tuple((box,) for box in part.boxes), ((whole,),) * 3)
    assert [plan.pixels_sent(rank) for rank in range(3)] == [2 * box.size for box in part.boxes]
    assert all(len(plan.between(i, j)) == 1 for i in range(3) for j in range(3))


def test_plans_are_remembered() -> None:
    layout = ((Box((0,), (4,)),), (Box((4,), (8,)),))
    assert plan_transfers(layout, layout) is plan_transfers(layout, layout)


@pytest.mark.parametrize(
    "sources",
    [
        ((Box((0, 0), (3, 3)),), (Box((2, 2), (4, 4)),)),
        ((Box((0, 0), (3, 3)), Box((2, 0), (4, 1))), ()),
    ],
)
def test_sources_that_overlap_are_refused(sources: Layout) -> None:
    with pytest.raises(ValueError, match=r"source boxes overlap: \[0:3, 0:3\] of rank 0"):
        plan_transfers(sources, ((), ()))
