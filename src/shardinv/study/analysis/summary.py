"""What a study's measurements say: times with intervals, scaling, and what limits it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardinv.study.analysis.efficiency import Scaling, scaling
from shardinv.study.analysis.factors import Factor, Iteration, factors, limit
from shardinv.study.analysis.statistics import median_interval, warm_up
from shardinv.study.measuring.measure import Measurement
from shardinv.study.plan.point import Point

# What may differ between a point and what its times are compared with.
_SHARING = {
    "system", "ranks", "layout", "tile", "overlap", "batch", "threads", "iterations", "repeat",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A point, over its repetitions.

    Parameters
    ----------
    point
        The first of them.
    seconds
        Median of an iteration on its slowest rank, and an interval of 95 %; without warm-up.
    psnr_db
        After the last iteration.
    bytes_sent
        Of a rank in an iteration, the mean over ranks; None where it isn't known.
    work
        Pixels that the network processes over those of the image; None where it isn't known.
    scaling
        Beside the baseline: undistributed DeepInverse on the same problem, else fewest ranks.
    factors
        That multiply to the efficiency; empty where work or baseline aren't known.
    """

    point: Point
    seconds: tuple[float, float, float]
    psnr_db: float
    bytes_sent: float | None
    work: float | None
    scaling: Scaling | None
    factors: tuple[Factor, ...]

    @property
    def limit(self) -> str:
        """What holds it back, in a sentence; empty where it isn't known."""
        return limit(self.factors) if self.factors else ""


def summarise(measurements: Sequence[Measurement]) -> list[Row]:
    """One row for each point, in the order given."""
    together: dict[str, list[Measurement]] = defaultdict(list)
    problems: dict[str, list[list[Measurement]]] = defaultdict(list)
    for measurement in measurements:
        key = measurement.point.model_copy(update={"repeat": 0}).key
        if key not in together:
            problems[_problem(measurement.point)].append(together[key])
        together[key].append(measurement)
    rows = []
    for group in together.values():
        baseline = _baseline(problems[_problem(group[0].point)])
        rows.append(_row(group, baseline))
    return rows


def _problem(point: Point) -> str:
    return point.model_dump_json(exclude=_SHARING)


def _baseline(groups: Sequence[list[Measurement]]) -> list[Measurement]:
    def order(group: list[Measurement]) -> tuple[bool, int]:
        point = group[0].point
        return point.system != "deepinv", point.ranks

    return min(groups, key=order)


def _row(group: Sequence[Measurement], baseline: Sequence[Measurement]) -> Row:
    point, first = group[0].point, baseline[0].point
    steady = [time for each in group for time in each.seconds[warm_up(each.seconds) :]]
    seconds = median_interval(steady)
    typical, plain = _typical(group), _typical(baseline)
    work, multiplier = group[0].work, _multiplier(group[0])
    compared = scaling(
        seconds[0],
        point.ranks,
        multiplier or 1.0,
        baseline_seconds=max(rank.total for rank in plain),
        baseline_workers=first.ranks,
        baseline_work=_multiplier(baseline[0]) or 1.0,
    )
    split: tuple[Factor, ...] = ()
    if work is not None and first.system == "deepinv":
        split = tuple(factors(plain[0], work, typical))
    sent = [sum(cost.bytes_sent for cost in rank) for each in group for rank in each.costs]
    count = len(group[0].iterations)
    return Row(
        point,
        seconds,
        group[0].psnr_db[-1],
        sum(sent) / len(sent) / count if point.system == "shardinv" else None,
        multiplier,
        None if group is baseline else compared,
        split,
    )


def _multiplier(measurement: Measurement) -> float | None:
    if measurement.point.system == "deepinv":
        return 1.0
    work = measurement.work
    return None if work is None else work.with_padding / work.image


def _typical(group: Sequence[Measurement]) -> list[Iteration]:
    """The iteration whose time is the median one's, by rank."""
    rows = [row for each in group for row in each.iterations[warm_up(each.seconds) :]]
    middle = median(max(rank.total for rank in row) for row in rows)
    return min(rows, key=lambda row: abs(max(rank.total for rank in row) - middle))
