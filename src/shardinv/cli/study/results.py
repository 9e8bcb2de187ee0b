"""The files of a study: one for each point, whole or not there, so that a run can go on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from shardinv.study.measuring.measure import Measurement
from shardinv.study.plan.point import Point


class Results:
    """A folder of measured points.

    Parameters
    ----------
    folder
        Where; made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, point: Point) -> Path:
        """Of what a point gave."""
        return self.folder / "points" / f"{point.key}.json"

    def error(self, point: Point) -> Path:
        """Of why it failed."""
        return self.folder / "points" / f"{point.key}.error.txt"

    def has(self, point: Point) -> bool:
        """Whether it was measured."""
        return self.file(point).is_file()

    def read(self, points: Iterable[Point]) -> list[Measurement]:
        """Those of the points that were measured, in their order."""
        return [
            Measurement.read(json.loads(self.file(point).read_text(encoding="utf-8")))
            for point in points
            if self.has(point)
        ]
