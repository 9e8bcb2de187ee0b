"""The iteration that stands for a point: the one whose time is nearest to the median."""

from __future__ import annotations

from shardinv.study.analysis.factors import Iteration
from shardinv.study.analysis.statistics import warm_up
from shardinv.study.analysis.summary import Row


def typical(row: Row) -> list[Iteration]:
    """By rank, after warm-up, of all repetitions."""
    steady = [each for m in row.measurements for each in m.iterations[warm_up(m.seconds) :]]
    return min(steady, key=lambda ranks: abs(max(rank.total for rank in ranks) - row.seconds[0]))


def slowest(row: Row) -> Iteration:
    """The same, of the rank that takes longest."""
    return max(typical(row), key=lambda rank: rank.total)
