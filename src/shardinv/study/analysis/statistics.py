"""Times of iterations: where warm-up ends, and how well a median is known."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median, pvariance


def warm_up(times: Sequence[float]) -> int:
    """How many of the first values to leave out.

    Its removal makes the mean of the rest nearly as certain as any does: the variance over the
    number of values left is at most four times the least, where at most half are left out (after
    White's marginal standard error rule, Simulation 69(6), 1997, which by itself leaves out more
    where few values happen to be alike).

    Examples
    --------
    >>> warm_up([9.0, 5.0, 2.0, 2.1, 2.0, 1.9, 2.0, 2.1])
    2
    >>> warm_up([2.0, 2.0, 2.0, 2.0])
    0
    """
    count = len(times)
    uncertainty = [pvariance(times[d:]) / (count - d) for d in range(count // 2 + 1) if d < count]
    if not uncertainty:
        return 0
    return next(d for d, value in enumerate(uncertainty) if value <= 4 * min(uncertainty))


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """The median, and an interval that has it with a probability of at least ``level``.

    From order statistics, whatever the distribution. With fewer than six values no two of them are
    that certain: the interval is then from the least to the greatest.

    Raises
    ------
    ValueError
        If there is no value.

    Examples
    --------
    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    (5.0, 2.0, 8.0)
    """
    if not values:
        raise ValueError("a median needs at least one value")
    ordered, count = sorted(values), len(values)
    # Of n values, fewer than k lie below the median with the probability of a binomial's tail.
    below, tail = 0, 0.0
    for k in range(count // 2):
        tail += comb(count, k) / 2**count
        if 2 * tail > 1 - level:
            break
        below = k
    return median(ordered), ordered[below], ordered[-1 - below]
