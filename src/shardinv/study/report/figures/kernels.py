"""What the profiler saw of an iteration: kernels, communication, and gaps between them."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.analysis.summary import Row
from shardinv.study.report.axes import unit_of_time
from shardinv.study.report.charts import Axis, BarChart, Lane, Part
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import percent


def kernels(rows: Sequence[Row], naming: Naming) -> BarChart | None:
    """Of the rank whose iteration took longest; None where no profile was taken."""
    known = [row for row in rows if row.measurements[0].kernels]
    if not known:
        return None
    longest = [max(row.measurements[0].kernels, key=lambda k: k.seconds) for row in known]
    unit, factor = unit_of_time(each.seconds for each in longest)
    parts = (
        Part("kernels that compute", tuple(factor * k.compute for k in longest), "denoiser"),
        Part("communication alone", tuple(factor * k.communication for k in longest), "moving"),
        Part("gaps", tuple(factor * k.gaps for k in longest), "rest", hatched=True),
    )
    worst, row = max(zip(longest, known, strict=True), key=lambda p: p[0].gaps / p[0].seconds)
    return BarChart(
        "kernels",
        "Kernels and gaps",
        "One iteration under PyTorch's profiler, which slows it down, on the rank that takes "
        "longest. In gaps nothing runs: the host prepares the next kernel. They are largest in "
        f"{naming.name(row.point)}, {percent(worst.gaps / worst.seconds)} of the iteration.",
        Axis(f"time in {unit}"),
        Axis(""),
        tuple(Lane(naming.lane(row.point), naming.series(row.point)) for row in known),
        parts,
    )
