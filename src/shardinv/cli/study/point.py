"""What every rank of a point does; rank 0 writes what was measured."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from shardinv.cli.versions import versions
from shardinv.io import write_json
from shardinv.study.measuring.measure import measure
from shardinv.study.measuring.scoring import Files
from shardinv.study.plan.point import Point


class Order(BaseModel):
    """A point, and its files.

    Parameters
    ----------
    point
        What to measure.
    file
        For what it gives.
    references
        By name, folders of the iterates of the runs that it is compared with.
    keep
        Folder for its own iterates.
    pictures
        Path to which ``-end.png`` and the like are added.
    """

    point: Point
    file: Path
    references: dict[str, Path] = {}
    keep: Path | None = None
    pictures: Path | None = None


def run_point(order: Order) -> None:
    """Measure a point on this rank."""
    before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found = measure(order.point, Files(order.references, order.keep, order.pictures))
    if found is not None:
        found.machine = _machine(before)
        write_json(order.file, found.record())


def _machine(load: float | None) -> dict[str, Any]:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(gpus)],
        "load_before": load,
        "versions": versions(),
    }
