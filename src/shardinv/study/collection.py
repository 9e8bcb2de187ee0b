"""What a folder of results holds, read from its files alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardinv.study.analysis.summary import Row, summarise
from shardinv.study.measurement import Measurement
from shardinv.study.plan.point import Point


class NoResults(ValueError):
    """A folder that holds no measured point, or one that can't be read."""


@dataclass(frozen=True)
class Collection:
    """All that was measured.

    Parameters
    ----------
    folder
        Where it lies.
    rows
        Points with their repetitions: by system, settings and number of ranks.
    study
        What ``study.json`` says; empty where there is none.
    failed
        Key and message of points that failed.
    """

    folder: Path
    rows: tuple[Row, ...]
    study: dict[str, Any] = field(default_factory=dict)
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def plan(self) -> dict[str, Any]:
        """The configuration; empty where it isn't known."""
        return dict(self.study.get("study") or {})

    @property
    def name(self) -> str:
        """Of the study, else of its folder."""
        return str(self.plan.get("name") or self.folder.resolve().name)

    @property
    def weak(self) -> bool:
        """Whether the problem grows with the ranks."""
        return self.plan.get("scaling") == "weak"

    @property
    def price(self) -> float | None:
        """Of an hour of one worker."""
        return self.plan.get("price")

    @property
    def measurements(self) -> list[Measurement]:
        """Of all points and repetitions."""
        return [measurement for row in self.rows for measurement in row.measurements]


def read_collection(folder: Path) -> Collection:
    """Read all that a folder holds.

    Raises
    ------
    NoResults
        If there is no measured point, or a file isn't what ``shardinv study run`` writes.
    """
    files = sorted((folder / "points").glob("*.json"))
    if not files:
        raise NoResults(
            f"{folder} holds no measured points (points/*.json): shardinv study run measures them"
        )
    measurements = [_measurement(file) for file in files]
    known = folder / "study.json"
    study = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
    failed = tuple(
        (file.name.removesuffix(".error.txt"), file.read_text(encoding="utf-8").strip())
        for file in sorted((folder / "points").glob("*.error.txt"))
    )
    return collect(folder, measurements, study, failed)


def collect(
    folder: Path,
    measurements: Sequence[Measurement],
    study: dict[str, Any] | None = None,
    failed: tuple[tuple[str, str], ...] = (),
) -> Collection:
    """Bring repetitions together, in the order of the report."""
    study = study or {}
    ordered = sorted(measurements, key=lambda each: _order(each.point))
    scaling = str((study.get("study") or {}).get("scaling", "strong"))
    return Collection(folder, tuple(summarise(ordered, scaling)), study, failed)


def _measurement(file: Path) -> Measurement:
    try:
        return Measurement.read(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise NoResults(
            f"{file} is not what this version of shardinv writes: {type(error).__name__}, {error}; "
            "remove it, and shardinv study run measures that point again"
        ) from error


def _order(point: Point) -> tuple[Any, ...]:
    systems = ("deepinv", "deepinv.distributed", "shardinv")
    settings = point.model_dump(exclude={"system", "layout", "ranks", "repeat"})
    # Numbers in the order of numbers: as text, 1024 would stand before 256.
    texts = [f"{v:020.6f}" if isinstance(v, (int, float)) else str(v) for v in settings.values()]
    return (systems.index(point.system), point.layout, texts, point.ranks, point.repeat)
