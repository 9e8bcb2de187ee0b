"""Times of iterations: where warm-up ends, and how well a median is known."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median, pvariance


def warm_up(times: Sequence[float]) -> int:
    """How many of the first values to leave out.

    The number whose removal makes the mean of the rest most certain: the least variance over the
    square of the number of values left, at most half of them (White's marginal standard error
    rule, Simulation 69(6), 1997).

    Examples
    --------
    >>> warm_up([9.0, 5.0, 2.0, 2.1, 2.0, 1.9, 2.0, 2.1])
    2
    >>> warm_up([2.0, 2.0, 2.0, 2.0])
    0
    """
    count = len(times)
    return min(
        range(count // 2 + 1),
        key=lambda d: pvariance(times[d:]) / (count - d) if count > d else 0.0,
        default=0,
    )


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
