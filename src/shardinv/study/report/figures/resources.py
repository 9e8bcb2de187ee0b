"""Memory, and what a reconstruction costs: workers' time, energy, price."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardinv.study.analysis.summary import Row
from shardinv.study.report.axes import counted, unit_of_bytes
from shardinv.study.report.charts import Axis, LineChart
from shardinv.study.report.curves import Value, curves
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import number


def memory(rows: Sequence[Row], naming: Naming) -> LineChart | None:
    """Of the rank that needs most."""
    known = [row for row in rows if row.peak_bytes is not None]
    if not known:
        return None
    unit, factor = unit_of_bytes([row.peak_bytes or 0 for row in known])
    least = min(known, key=lambda row: row.peak_bytes or 0)
    kind = "of tensors on the GPU" if known[0].point.device == "gpu" else "resident"
    return _chart(
        known,
        naming,
        "memory",
        "Memory of a rank",
        f"The most {kind} above what was there before the first iteration, of the rank that needs "
        f"most. Least is that of {naming.name(least.point)}: "
        f"{number(factor * (least.peak_bytes or 0))} {unit}.",
        f"memory in {unit}",
        lambda row: factor * (row.peak_bytes or 0),
    )


def worker_seconds(rows: Sequence[Row], naming: Naming) -> LineChart:
    """What all iterations take of the machine."""
    worker = "GPU" if rows[0].point.device == "gpu" else "worker"
    least = min(rows, key=lambda row: row.worker_seconds)
    return _chart(
        rows,
        naming,
        "worker-seconds",
        f"{worker.capitalize() if worker == 'worker' else worker}-seconds of a run",
        f"Ranks times seconds of all iterations: what a run takes away from others. A horizontal "
        f"line would be ideal scaling. Least is that of {naming.name(least.point)}: "
        f"{number(least.worker_seconds)} s.",
        f"{worker}-seconds",
        _worker_seconds,
    )


def energy(rows: Sequence[Row], naming: Naming) -> LineChart | None:
    """Of a whole run; None where nothing counted it."""
    known = [row for row in rows if row.joules is not None]
    if not known:
        return None
    source = {each.energy.source for row in known for each in row.measurements if each.energy}
    return _chart(
        known,
        naming,
        "energy",
        "Energy of a run",
        f"Of all iterations and all workers, by {' and '.join(sorted(source))}.",
        "energy in J",
        lambda row: (row.joules or 0.0) * row.point.iterations,
    )


def price(rows: Sequence[Row], naming: Naming, of_an_hour: float) -> LineChart:
    """At the price of an hour of one worker."""
    return _chart(
        rows,
        naming,
        "price",
        "Price of a run",
        f"Of all iterations, at {of_an_hour:g} for an hour of one worker.",
        "price",
        lambda row: row.price(of_an_hour),
    )


def _worker_seconds(row: Row) -> Value:
    middle, low, high = row.seconds
    return tuple(row.worker_seconds * each / middle for each in (middle, low, high))  # type: ignore[return-value]


def _chart(
    rows: Sequence[Row],
    naming: Naming,
    key: str,
    title: str,
    says: str,
    quantity: str,
    value: Callable[[Row], Value],
) -> LineChart:
    lines = tuple(curves(rows, naming, "ranks", value))
    most = max([y for line in lines for y in (*line.y, *line.high)], default=1.0)
    return LineChart(
        key,
        title,
        says,
        counted("ranks", [x for line in lines for x in line.x]),
        Axis(quantity, limits=(0.0, 1.08 * most or 1.0)),
        lines,
    )
