"""Dealing pieces to ranks, against the best deal of all."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import deal, imbalance

COSTS = st.lists(st.one_of(st.integers(0, 50), st.floats(0, 50)), max_size=12)


def largest_load(costs: list[float], hands: tuple[tuple[int, ...], ...]) -> float:
    return max(sum(costs[index] for index in hand) for hand in hands)


@given(COSTS, st.integers(1, 6))
def test_every_piece_is_dealt_once_and_alike_each_time(costs: list[float], ranks: int) -> None:
    hands = deal(costs, ranks)
    assert len(hands) == ranks
    assert sorted(index for hand in hands for index in hand) == list(range(len(costs)))
    assert all(list(hand) == sorted(hand) for hand in hands)
    assert deal(tuple(costs), ranks) == hands


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 3))
def test_largest_load_is_within_grahams_bound_of_the_best(costs: list[int], ranks: int) -> None:
    best = min(
        max(sum(c for c, owner in zip(costs, owners) if owner == rank) for rank in range(ranks))
        for owners in product(range(ranks), repeat=len(costs))
    )
    assert 3 * ranks * largest_load(costs, deal(costs, ranks)) <= (4 * ranks - 1) * best


def test_better_than_taking_turns() -> None:
    costs = [8.0, 1.0, 7.0, 1.0, 6.0, 1.0]
    turns = ((0, 2, 4), (1, 3, 5))
    assert largest_load(costs, turns) == 21
    assert largest_load(costs, deal(costs, 2)) == 13  # of 24 in all; the largest alone is 8
    assert imbalance(costs, deal(costs, 2)) < imbalance(costs, turns)


@given(st.integers(0, 20), st.integers(1, 6), st.sampled_from([0.0, 1.0, 2.5]))
def test_equal_pieces_are_dealt_evenly(count: int, ranks: int, cost: float) -> None:
    counts = [len(hand) for hand in deal([cost] * count, ranks)]
    assert max(counts) - min(counts) <= 1
    # With too few pieces, the first ranks have them.
    assert counts == sorted(counts, reverse=True)


def test_imbalance_is_largest_over_mean() -> None:
    assert imbalance([4.0, 1.0, 1.0], ((0,), (1, 2))) == pytest.approx(4 / 3)
    assert imbalance([1.0, 1.0], ((0,), (1,))) == 1
    assert imbalance([], ((), ())) == 1


def test_impossible_deals_are_refused() -> None:
    with pytest.raises(ValueError, match="number of ranks"):
        deal([1.0], 0)
    for costs in ([1.0, -1.0], [float("nan")]):
        with pytest.raises(ValueError, match="costs must be"):
            deal(costs, 2)
