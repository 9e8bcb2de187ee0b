"""What communication costs beside computing, and how much of the time it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean

from shardinv.study.analysis.factors import Iteration
from shardinv.study.analysis.summary import Row
from shardinv.study.published import published_communication
from shardinv.study.report.axes import counted, logarithmic, shares, unit_of_bytes, unit_of_time
from shardinv.study.report.charts import Axis, Line, LineChart
from shardinv.study.report.curves import curves
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import number, percent
from shardinv.study.report.typical import typical


def noted(rows: Sequence[Row]) -> list[Row]:
    """Those whose communication is known: of the peer nobody notes it."""
    return [row for row in rows if row.point.system == "shardinv"]


def compute_and_communication(rows: Sequence[Row], naming: Naming) -> LineChart:
    """Seconds of both, the mean over ranks."""
    known = noted(rows)
    unit, factor = unit_of_time(_mean(row, _computing) for row in known)
    computing = curves(known, naming, "ranks", lambda row: factor * _mean(row, _computing))
    talking = [
        # A rank alone says nothing, and a logarithmic axis has no zero.
        _positive(line)
        for line in curves(known, naming, "ranks", lambda row: factor * _mean(row, _talking))
    ]
    lines = [
        *(replace(line, name=f"{line.name}: compute", dash="solid") for line in computing),
        *(
            replace(line, name=f"{line.name}: communication", dash="dot")
            for line in talking
            if line.x
        ),
    ]
    return LineChart(
        "communication",
        "Compute and communication",
        "Solid: seconds in which a rank computes; dotted: in which it does nothing but "
        "communicate, waiting for slower ranks included. Means over ranks, in a typical iteration. "
        "Where the lines meet, more ranks no longer help.",
        counted("ranks", [row.point.ranks for row in known]),
        logarithmic(f"time of an iteration in {unit}", [y for line in lines for y in line.y]),
        tuple(lines),
    )


def share(rows: Sequence[Row], naming: Naming, published: bool) -> LineChart:
    """Of communication in both."""
    known = noted(rows)
    lines = curves(
        known, naming, "ranks", lambda row: _mean(row, _talking) / _mean(row, lambda r: r.total)
    )
    most = max(known, key=lambda row: _mean(row, _talking) / _mean(row, lambda r: r.total))
    waiting, talk = _mean(most, lambda rank: rank.waiting), _mean(most, _talking)
    says = "What part of an iteration is communication that no computation hides. "
    if talk:
        says += (
            f"Most is that of {naming.name(most.point)}; {percent(waiting / talk)} of it is "
            "waiting for a slower rank."
        )
    lines += _published() if published else []
    return LineChart(
        "communication-share",
        "Share of communication",
        says,
        counted("ranks", [x for line in lines for x in line.x]),
        shares("share of an iteration", [y for line in lines for y in line.y], least=0.05),
        tuple(lines),
    )


def sent(rows: Sequence[Row], naming: Naming) -> LineChart:
    """Bytes that a rank sends."""
    known = [row for row in noted(rows) if row.bytes_sent is not None]
    unit, factor = unit_of_bytes([row.bytes_sent or 0.0 for row in known])
    lines = curves(known, naming, "ranks", lambda row: factor * (row.bytes_sent or 0.0))
    most = max(known, key=lambda row: row.bytes_sent or 0.0)
    return LineChart(
        "bytes",
        "Bytes sent",
        "What a rank sends in an iteration, the mean over ranks, as the ledger counts it. Most is "
        f"that of {naming.name(most.point)}: {number(factor * (most.bytes_sent or 0))} {unit}.",
        counted("ranks", [x for line in lines for x in line.x]),
        Axis(f"sent by a rank in an iteration, in {unit}", limits=_from_zero(lines)),
        tuple(lines),
    )


def _from_zero(lines: Sequence[Line]) -> tuple[float, float]:
    return 0.0, 1.08 * max([y for line in lines for y in line.y], default=1.0) or 1.0


def _mean(row: Row, part: Callable[[Iteration], float]) -> float:
    return mean(part(rank) for rank in typical(row))


def _computing(rank: Iteration) -> float:
    return sum(rank.stages.values())


def _talking(rank: Iteration) -> float:
    return rank.waiting + rank.moving


def _positive(line: Line) -> Line:
    kept = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y > 0]
    return replace(line, x=tuple(x for x, _ in kept), y=tuple(y for _, y in kept))


def _published() -> list[Line]:
    found = published_communication()
    problems = list(dict.fromkeys(point.problem for point in found))
    return [
        Line(
            f"published {problem}, V100",
            tuple(float(p.workers) for p in found if p.problem == problem and p.tiled),
            tuple(p.share for p in found if p.problem == problem and p.tiled),
            "published",
            dash="dash" if number else "dot",
            marker="square" if number else "circle",
        )
        for number, problem in enumerate(problems)
    ]
