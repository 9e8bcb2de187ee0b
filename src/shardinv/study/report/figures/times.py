"""Where the time of an iteration goes: stages, and communication between them."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.analysis.summary import Row
from shardinv.study.report.axes import unit_of_time
from shardinv.study.report.charts import Axis, BarChart, Lane, Part
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import percent, seconds
from shardinv.study.report.typical import slowest

COMMUNICATION = ("waiting", "moving")


def stages(rows: Sequence[Row], naming: Naming) -> BarChart:
    """Seconds of an iteration in each stage, with intervals of the whole."""
    busiest = [slowest(row) for row in rows]
    names = list(dict.fromkeys(name for each in busiest for name in each.stages))
    unit, factor = unit_of_time(row.seconds[0] for row in rows)
    longest = max(row.seconds[2] for row in rows)
    longest = max(longest, *(each.total for each in busiest))
    parts = [
        Part(name, tuple(factor * each.stages.get(name, 0.0) for each in busiest), name)
        for name in names
    ]
    for name in COMMUNICATION:
        values = tuple(factor * getattr(each, name) for each in busiest)
        parts.append(Part(name, values, name, hatched=name == "waiting"))
    return BarChart(
        "stages",
        "Time of an iteration by stage",
        _says(rows, naming),
        Axis(f"time of an iteration in {unit}", limits=(0.0, 1.03 * factor * longest)),
        Axis(""),
        tuple(Lane(naming.lane(row.point), naming.series(row.point)) for row in rows),
        tuple(parts),
        tuple((factor * row.seconds[1], factor * row.seconds[2]) for row in rows),
    )


def _says(rows: Sequence[Row], naming: Naming) -> str:
    fastest = min(rows, key=lambda row: row.seconds[0])
    own = slowest(fastest)
    name, most = max(own.stages.items(), key=lambda stage: stage[1])
    talk = own.waiting + own.moving
    return (
        f"Each bar is a typical iteration on its slowest rank; the line at its end is the interval "
        f"that holds the median with 95 %. The fastest is {naming.name(fastest.point)}: "
        f"{seconds(fastest.seconds[0])}, of which the stage {name} takes "
        f"{percent(most / own.total)} and communication that nothing hides "
        f"{percent(talk / own.total)}."
    )
