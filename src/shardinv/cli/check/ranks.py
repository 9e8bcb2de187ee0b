"""What every rank of a check does; rank 0 shows what is found, and writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from shardinv.cli.check.lines import console, show, show_summary
from shardinv.cli.versions import versions
from shardinv.context.environment import detect_launch
from shardinv.io import write_json
from shardinv.study.checks.finding import Finding, Status, worst
from shardinv.study.checks.run import checks
from shardinv.study.plan.point import Point


class Order(BaseModel):
    """A point to check, and where to write."""

    point: Point
    folder: Path
    iterations: int
    seconds: float
    load: float | None
    report: Path | None


def run_check(order: Order) -> Status:
    """Check on this rank; returns the gravest status, the same on every rank."""
    main = detect_launch(os.environ).rank == 0
    out = console()
    findings: list[Finding] = []
    for finding in _checks(order):
        findings.append(finding)
        if main:
            show(out, finding)
    if main:
        show_summary(out, findings)
        if order.report is not None:
            write_json(order.report, _record(order.point, findings))
    return worst(findings)


def _checks(order: Order) -> Iterator[Finding]:
    return checks(order.point, order.folder, order.iterations, order.seconds, order.load)


def check_on_rank(order: Order) -> None:
    """:func:`run_check`, for a worker, whose exit status tells of errors alone."""
    run_check(order)


def _record(point: Point, findings: list[Finding]) -> dict[str, object]:
    return {
        "point": point.model_dump(mode="json"),
        "status": worst(findings),
        "findings": [finding.record() for finding in findings],
        "versions": versions(),
    }
