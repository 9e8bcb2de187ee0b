"""Dealing pieces of unequal cost to ranks: operators, tiles."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def deal(costs: Sequence[float], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Deal pieces to ranks, longest first, each to the rank with the least so far.

    The largest load is at most 4/3 - 1/(3 ranks) of the best possible.

    Parameters
    ----------
    costs
        Cost of each piece, in any unit, at least 0.
    ranks
        Number of ranks.

    Returns
    -------
    tuple of tuple of int
        The indices of the pieces of each rank, increasing. Empty for a rank without a piece.

    Raises
    ------
    ValueError
        If ``ranks`` is below one or a cost is negative or not a number.

    References
    ----------
    R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969.

    Examples
    --------
    >>> deal([5, 1, 1, 3], 2)
    ((0,), (1, 2, 3))
    """
    if ranks < 1:
        raise ValueError(f"the number of ranks must be at least 1, got {ranks}")
    if not all(cost >= 0 for cost in costs):
        raise ValueError(f"costs must be numbers of at least 0, got {list(costs)}")
    # Ties go to the rank with fewer pieces, then to the lower one, so that pieces of no cost are
    # spread out as well and every rank computes the same deal.
    heap = [(0.0, 0, rank) for rank in range(ranks)]
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, count, rank = heapq.heappop(heap)
        hands[rank].append(index)
        heapq.heappush(heap, (load + float(costs[index]), count + 1, rank))
    return tuple(tuple(sorted(hand)) for hand in hands)


def deal_near(
    costs: Sequence[float], held: Sequence[Sequence[float]]
) -> tuple[tuple[int, ...], ...]:
    """Deal pieces to the ranks that hold most of them, then even out.

    A piece moves from the rank with the largest load to the one with the smallest, as long as that
    lowers the larger of the two; the one that the receiving rank holds most of goes first. So
    little is sent where the pieces follow the ranks' boxes, and no rank waits long where they
    don't.

    Parameters
    ----------
    costs
        Cost of each piece, in any unit, at least 0.
    held
        ``held[piece][rank]``: how much of a piece a rank holds, in any unit.

    Returns
    -------
    tuple of tuple of int
        The indices of the pieces of each rank, increasing.

    Examples
    --------
    >>> deal_near([1, 1, 1, 1], [(4, 0), (3, 1), (1, 3), (0, 4)])
    ((0, 1), (2, 3))
    """
    ranks = len(held[0]) if held else 1
    loads = [0.0] * ranks
    hands: list[set[int]] = [set() for _ in range(ranks)]
    for index, cost in enumerate(costs):
        home = min(range(ranks), key=lambda rank: (-held[index][rank], loads[rank], rank))
        hands[home].add(index)
        loads[home] += cost
    while True:
        giver = max(range(ranks), key=lambda rank: (loads[rank], -rank))
        taker = min(range(ranks), key=lambda rank: (loads[rank], rank))
        fitting = [i for i in hands[giver] if 0 < costs[i] < loads[giver] - loads[taker]]
        if not fitting:
            return tuple(tuple(sorted(hand)) for hand in hands)
        moved = min(fitting, key=lambda i: (-held[i][taker], -costs[i], i))
        hands[giver].remove(moved)
        hands[taker].add(moved)
        loads[giver] -= costs[moved]
        loads[taker] += costs[moved]


def imbalance(costs: Sequence[float], hands: Sequence[Sequence[int]]) -> float:
    """The largest rank's cost over the mean of all ranks: 1 is perfect balance."""
    loads = [sum(costs[i] for i in hand) for hand in hands]
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0
