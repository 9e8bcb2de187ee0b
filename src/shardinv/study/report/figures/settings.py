"""Time, quality and work against a setting that the study varies: halo, tile, size and so on."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.analysis.summary import Row
from shardinv.study.report.axes import logarithmic, unit_of_time
from shardinv.study.report.charts import Axis, LineChart
from shardinv.study.report.curves import TITLES, Value, axis, curves
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import number, seconds

# What a figure can be drawn against, beside ranks.
SETTINGS = ("overlap", "tile", "size", "batch", "threads", "frames", "unrolled")


def varies(rows: Sequence[Row], naming: Naming, setting: str) -> bool:
    """Whether points differ in it alone: else there is no line to draw against it."""
    lines = curves(rows, naming, setting, lambda row: row.seconds[0])
    return any(line.marker != "none" and len(set(line.x)) > 1 for line in lines)


def against(rows: Sequence[Row], naming: Naming, setting: str) -> list[LineChart]:
    """Time of an iteration, PSNR, distance to the untiled run, and work of the network."""
    found = [_time(rows, naming, setting), _psnr(rows, naming, setting)]
    return [
        chart
        for chart in [*found, _distance(rows, naming, setting), _work(rows, naming, setting)]
        if chart is not None
    ]


def _time(rows: Sequence[Row], naming: Naming, setting: str) -> LineChart:
    unit, factor = unit_of_time(row.seconds[0] for row in rows)

    def value(row: Row) -> Value:
        middle, low, high = row.seconds
        return factor * middle, factor * low, factor * high

    lines = curves(rows, naming, setting, value)
    best = min(rows, key=lambda row: row.seconds[0])
    return LineChart(
        f"time-{setting}",
        f"Time against the {_short(setting)}",
        f"The fastest iteration is that of {naming.name(best.point)}: {seconds(best.seconds[0])}.",
        axis(lines, setting),
        logarithmic(f"time of an iteration in {unit}", [y for line in lines for y in line.y]),
        tuple(lines),
    )


def _psnr(rows: Sequence[Row], naming: Naming, setting: str) -> LineChart:
    lines = curves(rows, naming, setting, lambda row: row.psnr_db)
    best = max(rows, key=lambda row: row.psnr_db)
    return LineChart(
        f"psnr-{setting}",
        f"PSNR against the {_short(setting)}",
        f"After the last iteration; highest is {naming.name(best.point)}, {best.psnr_db:.2f} dB.",
        axis(lines, setting),
        Axis("PSNR in dB"),
        tuple(lines),
    )


def _distance(rows: Sequence[Row], naming: Naming, setting: str) -> LineChart | None:
    def value(row: Row) -> Value:
        found = row.measurements[0].agreement.get("untiled")
        return found[-1].relative if found and found[-1].relative > 0 else None

    known = [row for row in rows if value(row) is not None]
    if not known:
        return None
    lines = curves(known, naming, setting, value)
    best = min(known, key=lambda row: row.measurements[0].agreement["untiled"][-1].relative)
    least = best.measurements[0].agreement["untiled"][-1].relative
    return LineChart(
        f"distance-{setting}",
        f"Distance to the untiled run against the {_short(setting)}",
        f"After the last iteration; nearest is {naming.name(best.point)}, {number(least, 2)}.",
        axis(lines, setting),
        logarithmic("relative distance", [y for line in lines for y in line.y]),
        tuple(lines),
    )


def _work(rows: Sequence[Row], naming: Naming, setting: str) -> LineChart | None:
    known = [row for row in rows if row.work is not None]
    lines = curves(known, naming, setting, lambda row: row.work)
    if not any(row.point.system != "deepinv" for row in known):
        return None
    return LineChart(
        f"work-{setting}",
        f"Work against the {_short(setting)}",
        "What the network processes over the image: 1 would be no halo, no rest and no padding.",
        axis(lines, setting),
        Axis("work multiplier", limits=(0.9, 1.05 * max(y for line in lines for y in line.y))),
        tuple(lines),
    )


def _short(setting: str) -> str:
    return {"overlap": "halo", "tile": "tile", "size": "size", "batch": "batch"}.get(
        setting, TITLES[setting]
    )
