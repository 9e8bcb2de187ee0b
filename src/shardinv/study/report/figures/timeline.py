"""When each rank did what in a typical iteration."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.analysis.summary import Row
from shardinv.study.analysis.timeline import Span
from shardinv.study.report.axes import unit_of_time
from shardinv.study.report.charts import Axis, Figure, Lane, Stretch, TimelineChart
from shardinv.study.report.naming import Naming, file_name
from shardinv.study.report.numbers import number, percent

# Of one rank; each is an element of the page. The export has all.
_MOST = 400


def timelines(rows: Sequence[Row], naming: Naming) -> Figure | None:
    """A chart for each point that has one, those with most ranks first; None where none has."""
    known = [row for row in rows if any(row.measurements[0].timeline)]
    known.sort(key=lambda row: (row.point.system != "shardinv", -row.point.ranks))
    charts = tuple((naming.name(row.point), _timeline(row, naming)) for row in known)
    return Figure(charts) if charts else None


def _timeline(row: Row, naming: Naming) -> TimelineChart:
    ranks = row.measurements[0].timeline
    length = max(span.end for spans in ranks for span in spans)
    unit, factor = unit_of_time([length])
    stretches = tuple(
        _stretch(lane, span, factor, unit)
        for lane, spans in enumerate(ranks)
        for span in _longest(spans)
    )
    return TimelineChart(
        f"timeline-{file_name(naming.name(row.point))}",
        f"One iteration: {naming.name(row.point)}",
        _says(ranks, length),
        Axis(f"time since the iteration began, in {unit}", limits=(0.0, factor * length)),
        Axis(""),
        tuple(Lane(f"rank {rank}") for rank in range(len(ranks))),
        stretches,
    )


def _stretch(lane: int, span: Span, factor: float, unit: str) -> Stretch:
    stage = span.kind == "stage"
    detail = f"{number(factor * (span.end - span.start))} {unit}"
    if span.bytes_sent:
        detail += f", {span.bytes_sent:,} bytes sent".replace(",", " ")
    return Stretch(
        lane,
        span.name if stage else f"{span.name}, {span.kind}",
        factor * span.start,
        factor * span.end,
        span.name if stage else span.kind,
        upper=stage,
        hatched=span.kind == "waiting",
        detail=detail,
    )


def _longest(spans: Sequence[Span]) -> list[Span]:
    kept = sorted(spans, key=lambda span: span.start - span.end)[:_MOST]
    # Hidden operations behind what is drawn over them.
    return sorted(kept, key=lambda span: (span.kind != "hidden", span.start))


def _says(ranks: Sequence[Sequence[Span]], length: float) -> str:
    def spent(kind: str) -> float:
        total = sum(s.end - s.start for spans in ranks for s in spans if s.kind == kind)
        return total / len(ranks) / length

    text = "Each rank's stages, and under them its communication."
    shares = {kind: spent(kind) for kind in ("waiting", "moving", "hidden")}
    if any(shares.values()):
        text += (
            f" In the mean a rank waits for others {percent(shares['waiting'])} of the time, moves "
            f"bytes {percent(shares['moving'])}, and has messages under way behind computation "
            f"{percent(shares['hidden'])}."
        )
    return text
