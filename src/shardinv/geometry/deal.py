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


def imbalance(costs: Sequence[float], hands: Sequence[Sequence[int]]) -> float:
    """The largest rank's cost over the mean of all ranks: 1 is perfect balance."""
    loads = [sum(costs[i] for i in hand) for hand in hands]
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0
