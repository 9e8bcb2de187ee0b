"""Speedup and efficiency against the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardinv.study.analysis.efficiency import Scaling
from shardinv.study.analysis.summary import Row
from shardinv.study.published import published_scaling
from shardinv.study.report.axes import counted, logarithmic, shares
from shardinv.study.report.charts import Dash, Line, LineChart, Marker
from shardinv.study.report.curves import Value, curves
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import number, percent

_DASHES: tuple[Dash, ...] = ("dot", "dash", "dashdot")
_MARKERS: tuple[Marker, ...] = ("circle", "square", "diamond")


def speedup(rows: Sequence[Row], naming: Naming, published: bool) -> LineChart:
    """How much faster than the baseline."""
    lines = curves(rows, naming, "ranks", _of(lambda scaling: scaling.speedup))
    lines += _published(lambda scaling: scaling.speedup) if published else []
    ranks = [x for line in lines for x in line.x]
    best = max(rows, key=_speedup)
    ends = (min(ranks), max(ranks))
    ideal = Line("ideal", ends, ends, "reference", dash="dash", marker="none")
    says = (
        "Nothing is faster than the baseline."
        if best.scaling is None
        else f"{naming.name(best.point)} is the fastest, {number(_speedup(best))} times as fast as "
        "the baseline."
    )
    says += " On the dashed line twice the ranks would take half the time."
    return LineChart(
        "speedup",
        "Speedup",
        says,
        counted("ranks", ranks),
        logarithmic("times as fast as the baseline", [y for line in lines for y in line.y]),
        (ideal, *lines),
    )


def efficiency(rows: Sequence[Row], naming: Naming, published: bool) -> LineChart:
    """Speedup over workers."""
    return _efficiency(
        rows,
        naming,
        published,
        lambda scaling: scaling.efficiency,
        "efficiency",
        "Efficiency",
        "Speedup over the ratio of workers: what a rank does in the time that one rank alone takes",
    )


def normalised_efficiency(rows: Sequence[Row], naming: Naming, published: bool) -> LineChart:
    """The same at equal work."""
    return _efficiency(
        [row for row in rows if row.work is not None],
        naming,
        published,
        lambda scaling: scaling.work_normalised_efficiency,
        "efficiency-equal-work",
        "Efficiency at equal work",
        "Efficiency times what the network processes over the image, which takes out what tiles "
        "and their halos cost",
    )


def _efficiency(
    rows: Sequence[Row],
    naming: Naming,
    published: bool,
    share: Callable[[Scaling], float],
    key: str,
    title: str,
    meaning: str,
) -> LineChart:
    lines = curves(rows, naming, "ranks", _of(share))
    own = [(line, line.y[-1]) for line in lines if len(line.x) > 1]
    lines += _published(share) if published else []
    ranks = [x for line in lines for x in line.x]
    says = f"{meaning}."
    if own:
        words = [f"{percent(y)} ({line.name}, {line.x[-1]:g})" for line, y in own]
        says += f" On the most ranks: {', '.join(words)}."
    full = Line("ideal", (min(ranks), max(ranks)), (1, 1), "reference", dash="dash", marker="none")
    return LineChart(
        key,
        title,
        says,
        counted("ranks", ranks),
        shares(title.lower(), [y for line in lines for y in (*line.y, *line.high)]),
        (full, *lines),
    )


def _of(part: Callable[[Scaling], float]) -> Callable[[Row], Value]:
    """With the interval that the interval of the time gives; the baseline itself is 1."""

    def value(row: Row) -> Value:
        if row.scaling is None:
            return 1.0
        middle, low, high = row.seconds
        found = part(row.scaling)
        return found, found * middle / high, found * middle / low

    return value


def _speedup(row: Row) -> float:
    return 1.0 if row.scaling is None else row.scaling.speedup


def _published(part: Callable[[Scaling], float]) -> list[Line]:
    return [
        Line(
            f"published {side}², V100",
            tuple(float(point.workers) for point, _ in points),
            tuple(part(scaling) for _, scaling in points),
            "published",
            dash=dash,
            marker=marker,
        )
        for (side, points), dash, marker in zip(
            published_scaling().items(), _DASHES, _MARKERS, strict=True
        )
    ]
