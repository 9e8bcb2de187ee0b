"""The files of a study: one for each point, whole or not there, so that a run can go on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from shardinv.cli.study.point import Order
from shardinv.study.measurement import Measurement
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

    def left(self, points: Iterable[Point]) -> list[Point]:
        """Those of the points that are still to be measured, in their order.

        A reference run is measured again where its iterates are gone and another point is to be
        compared with them.
        """
        points = list(points)
        needed = {
            reference.key
            for point in points
            if not self.has(point)
            for reference in point.references.values()
            if not self._has_iterates(reference)
        }
        return [point for point in points if point.key in needed or not self.has(point)]

    def order(self, point: Point) -> Order:
        """What the ranks of a point are told; before, its reference runs must have been tried."""
        references = {
            name: self._iterates(reference)
            for name, reference in point.references.items()
            if self._has_iterates(reference)
        }
        pictures = self.folder / "images" / point.key
        return Order(
            point=point,
            file=self.file(point),
            # Of the run that it is itself nothing is to be found yet.
            references={n: f for n, f in references.items() if point.references[n] != point},
            keep=self._iterates(point) if point.is_reference else None,
            pictures=pictures if point.quality and point.repeat == 0 else None,
        )

    def _iterates(self, point: Point) -> Path:
        return self.folder / "references" / point.key

    def _has_iterates(self, point: Point) -> bool:
        return (self._iterates(point) / f"{point.iterations:04}.npy").is_file()

    def read(self, points: Iterable[Point]) -> list[Measurement]:
        """Those of the points that were measured, in their order."""
        return [
            Measurement.read(json.loads(self.file(point).read_text(encoding="utf-8")))
            for point in points
            if self.has(point)
        ]
