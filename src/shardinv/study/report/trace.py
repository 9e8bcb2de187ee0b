"""A typical iteration as a trace for Perfetto and chrome://tracing.

Ranks are processes; stages, exposed communication and operations behind computation are threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardinv.io import write_json
from shardinv.study.analysis.timeline import Span
from shardinv.study.measurement import Measurement

_STAGES, _EXPOSED, _HIDDEN = 0, 1, 2


def save_trace(measurement: Measurement, name: str, path: Path) -> Path | None:
    """Write the trace of a point; None where it has no timeline."""
    if not any(measurement.timeline):
        return None
    write_json(path, trace(measurement.timeline, name))
    return path


def trace(ranks: Sequence[Sequence[Span]], name: str) -> dict[str, Any]:
    """Events in the Trace Event Format of Chromium; times in microseconds.

    Parameters
    ----------
    ranks
        By rank, what it did.
    name
        Of the point.
    """
    events = [event for rank, spans in enumerate(ranks) for event in _rank(rank, spans)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"point": name}}


def _rank(rank: int, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    yield _named("process_name", rank, 0, f"rank {rank}")
    yield {**_named("process_sort_index", rank, 0, ""), "args": {"sort_index": rank}}
    lanes = list(_lanes([span for span in spans if span.kind == "hidden"]))
    yield _named("thread_name", rank, _STAGES, "stages")
    yield _named("thread_name", rank, _EXPOSED, "communication")
    for number in sorted({lane for _, lane in lanes}):
        title = "behind computation" + (f" {number + 1}" if number else "")
        yield _named("thread_name", rank, _HIDDEN + number, title)
    for span in spans:
        if span.kind != "hidden":
            yield _event(span, rank, _STAGES if span.kind == "stage" else _EXPOSED)
    for span, number in lanes:
        yield _event(span, rank, _HIDDEN + number)


def _lanes(spans: Sequence[Span]) -> Iterator[tuple[Span, int]]:
    """Each with the first thread that is free: events of a thread must not overlap in part."""
    ends: list[float] = []
    for span in sorted(spans, key=lambda each: each.start):
        free = next((n for n, end in enumerate(ends) if end <= span.start), len(ends))
        ends[free : free + 1] = [span.end]
        yield span, free


def _event(span: Span, rank: int, thread: int) -> dict[str, Any]:
    stage = span.kind == "stage"
    return {
        "name": span.name,
        "cat": span.kind,
        "ph": "X",
        "ts": 1e6 * span.start,
        "dur": 1e6 * (span.end - span.start),
        "pid": rank,
        "tid": thread,
        "args": {} if stage else {"kind": span.kind, "bytes_sent": span.bytes_sent},
    }


def _named(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
