"""Plans cut into rounds, and the order in which blocks are laid into their targets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import Box, Layout, Partition, Plan, Transfer, plan_transfers
from tests.geometry.test_transfers import plan_matrix, problems

Problem = tuple[Layout, Layout, tuple[int | None, ...] | None]


def value(transfer: Transfer, plan: Plan, held: dict[tuple[int, int], np.ndarray]) -> np.ndarray:
    origin = plan.sources[transfer.source_rank][transfer.source_index]
    source = held[transfer.source_rank, transfer.source_index]
    return source[transfer.source_box.slices(origin)]


def laid(
    plan: Plan, rounds: tuple[Plan, ...], held: dict[tuple[int, int], np.ndarray]
) -> list[np.ndarray]:
    """Every target, as the landings say; what nobody makes zero is NaN at first."""
    results = []
    for rank, boxes in enumerate(plan.targets):
        for index, (box, whole) in enumerate(zip(boxes, plan.landings(rank), strict=True)):
            target = np.full(box.shape, np.nan if whole.complete else 0.0)
            for part in rounds:
                landing = part.landings(rank)[index]
                for transfer, add in zip(landing.transfers, landing.adds, strict=True):
                    region = target[transfer.target_box.slices(box)]
                    block = value(transfer, plan, held)
                    region[...] = region + block if add else block
            results.append(target)
    return results


def added_in_order(plan: Plan, held: dict[tuple[int, int], np.ndarray]) -> list[np.ndarray]:
    """Every target by definition: zeros, and the blocks added in the order of the ranks."""
    results = []
    for rank, boxes in enumerate(plan.targets):
        for index, box in enumerate(boxes):
            target = np.zeros(box.shape)
            for source in range(len(plan.sources)):
                for transfer in plan.between(source, rank):
                    if transfer.target_index == index:
                        target[transfer.target_box.slices(box)] += value(transfer, plan, held)
            results.append(target)
    return results


@given(problems(), st.booleans(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_rounds_and_landings_give_the_sum_in_rank_order(
    problem: Problem, reverse: bool, count: int, seed: int
) -> None:
    plan = plan_transfers(*problem)
    plan = plan.reversed if reverse else plan
    random = np.random.default_rng(seed)
    # Numbers of very different sizes: another order of the terms shows.
    held = {
        (rank, index): random.standard_normal(box.shape) * 10.0 ** random.integers(-8, 8, box.shape)
        for rank, boxes in enumerate(plan.sources)
        for index, box in enumerate(boxes)
    }
    expected = added_in_order(plan, held)
    for rounds in ((plan,), plan.in_rounds(count)):
        for mine, reference in zip(laid(plan, rounds, held), expected, strict=True):
            np.testing.assert_array_equal(mine, reference)


@given(problems(), st.booleans(), st.integers(1, 5))
def test_rounds_move_every_pixel_once(problem: Problem, reverse: bool, count: int) -> None:
    plan = plan_transfers(*problem)
    plan = plan.reversed if reverse else plan
    rounds = plan.in_rounds(count)
    assert len(rounds) == count
    assert rounds is plan.in_rounds(count) or count == 1
    np.testing.assert_array_equal(sum(plan_matrix(part) for part in rounds), plan_matrix(plan))
    ranks = range(len(plan.sources))
    traffic = [
        sum(
            t.source_box.size
            for t in plan.transfers
            if t.source_rank != t.target_rank and rank in (t.source_rank, t.target_rank)
        )
        for rank in ranks
    ]
    assert plan.busiest == max(traffic)


def test_rounds_of_a_gather_and_of_its_adjoint_are_equal() -> None:
    part = Partition.split((64, 12), (4, 1))
    sources = tuple((box,) for box in part.boxes)
    plan = plan_transfers(sources, ((Box.whole((64, 12)),),) * 4)
    for whole in (plan, plan.reversed):
        for each in whole.in_rounds(8):
            # All ranks send in every round: 2 of 16 rows to each of 3 others.
            assert [each.pixels_sent(rank) for rank in range(4)] == [3 * 2 * 12] * 4


def test_what_is_around_a_halo_s_adjoint_is_copied() -> None:
    part = Partition.split((30, 4), (3, 1))
    windows = tuple((window,) for window in part.windows((2, 0)))
    plan = plan_transfers(tuple((box,) for box in part.boxes), windows)
    for rank in range(3):
        (there,), (back,) = plan.landings(rank), plan.reversed.landings(rank)
        assert there.complete
        assert not any(there.adds)
        assert back.complete
        assert back.transfers[0].source_rank == rank
        assert back.adds == (False,) + (True,) * (len(back.transfers) - 1)


def test_where_three_meet_the_order_of_the_ranks_is_kept() -> None:
    part = Partition.split((8, 8), (2, 2))
    windows = tuple((window,) for window in part.windows((2, 2)))
    plan = plan_transfers(tuple((box,) for box in part.boxes), windows).reversed
    for rank in range(4):
        (landing,) = plan.landings(rank)
        assert [t.source_rank for t in landing.transfers] == [0, 1, 2, 3]
    # Everything to everyone, and back: four terms, of which the first is copied.
    whole = plan_transfers(tuple((box,) for box in part.boxes), ((Box.whole((8, 8)),),) * 4)
    (landing,) = whole.reversed.landings(2)
    assert [t.source_rank for t in landing.transfers] == [0, 1, 2, 3]
    assert landing.adds == (False, True, True, True)
    assert landing.complete
