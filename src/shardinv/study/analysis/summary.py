"""What a study's measurements say: times with intervals, scaling, and what limits it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardinv.study.analysis.efficiency import Scaling, scaling
from shardinv.study.analysis.factors import Factor, Iteration, factors, limit
from shardinv.study.analysis.statistics import median_interval, warm_up
from shardinv.study.measurement import Measurement
from shardinv.study.plan.point import Point

# What may differ between a point and what its times are compared with.
_SHARING = {
    "system", "ranks", "layout", "tile", "overlap", "batch", "threads", "iterations", "repeat",
    "checkpoint", "precision", "quality", "profile",
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
        That multiply to the efficiency; empty where work or baseline aren't known, and in training,
        where the network's share of the time isn't.
    peak_bytes
        Of the rank that takes most; None where it isn't known.
    joules
        Of an iteration, all ranks together; None where nothing counts them.
    measurements
        The repetitions.
    """

    point: Point
    seconds: tuple[float, float, float]
    psnr_db: float
    bytes_sent: float | None
    work: float | None
    scaling: Scaling | None
    factors: tuple[Factor, ...]
    peak_bytes: int | None
    joules: float | None
    measurements: tuple[Measurement, ...]

    @property
    def worker_seconds(self) -> float:
        """Of a whole reconstruction, or of all training steps: workers times seconds."""
        return self.seconds[0] * self.point.iterations * self.point.ranks

    def price(self, of_an_hour: float) -> float:
        """Of that, at the price of an hour of one worker."""
        return self.worker_seconds / 3600 * of_an_hour

    @property
    def limit(self) -> str:
        """What holds it back, in a sentence; empty where it isn't known."""
        return limit(self.factors) if self.factors else ""


def summarise(measurements: Sequence[Measurement], scaling: str = "strong") -> list[Row]:
    """One row for each point, in the order given.

    Parameters
    ----------
    measurements
        Of all points.
    scaling
        ``strong``: a point is compared with the same problem on the fewest ranks, if it can be
        undistributed; ``weak``: problems of all sizes are one, and times are scaled by the pixels.
    """
    apart = _SHARING | ({"size"} if scaling == "weak" else set())
    together: dict[str, list[Measurement]] = defaultdict(list)
    problems: dict[str, list[list[Measurement]]] = defaultdict(list)
    for measurement in measurements:
        key = measurement.point.model_copy(update={"repeat": 0}).key
        if key not in together:
            problems[_problem(measurement.point, apart)].append(together[key])
        together[key].append(measurement)
    return [
        _row(group, _baseline(problems[_problem(group[0].point, apart)]))
        for group in together.values()
    ]


def _problem(point: Point, apart: set[str]) -> str:
    return point.model_dump_json(exclude=apart)


def _baseline(groups: Sequence[list[Measurement]]) -> list[Measurement]:
    def order(group: list[Measurement]) -> tuple[bool, int, int]:
        point = group[0].point
        return point.system != "deepinv", point.pixels, point.ranks

    return min(groups, key=order)


def _row(group: Sequence[Measurement], baseline: Sequence[Measurement]) -> Row:
    point, first = group[0].point, baseline[0].point
    steady = [time for each in group for time in each.seconds[warm_up(each.seconds) :]]
    seconds = median_interval(steady)
    typical, plain = _typical(group), _typical(baseline)
    work, multiplier = group[0].work, _multiplier(group[0])
    larger = point.pixels / first.pixels
    compared = scaling(
        seconds[0],
        point.ranks,
        multiplier or 1.0,
        baseline_seconds=larger * max(rank.total for rank in plain),
        baseline_workers=first.ranks,
        baseline_work=_multiplier(baseline[0]) or 1.0,
    )
    split: tuple[Factor, ...] = ()
    if work is not None and first.system == "deepinv" and point.task == "reconstruct":
        noted = point.system == "shardinv"
        split = tuple(factors(plain[0], work, typical, larger=larger, messages_noted=noted))
    sent = [sum(cost.bytes_sent for cost in rank) for each in group for rank in each.costs]
    peaks = [rank.most for each in group for rank in each.memory if rank.most is not None]
    joules = [each.energy.joules / point.iterations for each in group if each.energy is not None]
    return Row(
        point=point,
        seconds=seconds,
        psnr_db=group[0].psnr_db[-1],
        bytes_sent=sum(sent) / len(sent) / point.iterations if point.system == "shardinv" else None,
        work=multiplier,
        scaling=None if group is baseline else compared,
        factors=split,
        peak_bytes=max(peaks, default=None),
        joules=median(joules) if joules else None,
        measurements=tuple(group),
    )


def _multiplier(measurement: Measurement) -> float | None:
    if measurement.point.system == "deepinv":
        return 1.0
    work = measurement.work
    return None if work is None else work.with_padding / work.image


def _typical(group: Sequence[Measurement]) -> list[Iteration]:
    """The iteration whose time is nearest to the median, by rank, scaled to take just that."""
    rows = [row for each in group for row in each.iterations[warm_up(each.seconds) :]]
    times = [max(rank.total for rank in row) for row in rows]
    middle = median(times)
    time, row = min(zip(times, rows, strict=True), key=lambda pair: abs(pair[0] - middle))
    return [rank.scaled(middle / time) for rank in row]
