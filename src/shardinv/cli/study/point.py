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
from shardinv.study.plan.point import Point


class Order(BaseModel):
    """A point, and the file for what it gives."""

    point: Point
    file: Path


def run_point(order: Order) -> None:
    """Measure a point on this rank."""
    before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found = measure(order.point)
    if found is not None:
        write_json(order.file, {**found.record(), "machine": _machine(before)})


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
