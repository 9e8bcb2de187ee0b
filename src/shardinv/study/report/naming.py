"""How points and series are called, and how they look: by what differs between the points."""

from __future__ import annotations

import re
from collections.abc import Collection as Several
from collections.abc import Iterable
from typing import Any

from shardinv.study.plan.point import Point
from shardinv.study.report.charts import Dash, Marker
from shardinv.study.report.numbers import count

# What points are called by anyway, and which run it is.
_OWN = {"system", "layout", "ranks", "repeat"}
# What changes no time: named only where points would be called the same without it.
_SILENT = {"quality": ("not scored", "scored"), "profile": ("not profiled", "profiled")}
_DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot")
_MARKERS: tuple[Marker, ...] = ("circle", "square", "diamond", "triangle-up", "x")


class Naming:
    """Names for the points of a study.

    Parameters
    ----------
    points
        All of them. Only settings that differ between them are named.
    hidden
        Settings that are not named though they differ.

    Examples
    --------
    >>> points = [Point(size=size, ranks=ranks) for size in (256, 512) for ranks in (1, 2)]
    >>> naming = Naming(points)
    >>> naming.name(points[3]), naming.series(points[3]), naming.varying
    ('shardinv replicated, 512², 2 ranks', 'shardinv replicated, 512²', ('size',))
    """

    def __init__(self, points: Iterable[Point], hidden: Several[str] = ()) -> None:
        self.points = list(points)
        self._hidden = tuple(hidden)
        self.varying = tuple(
            name
            for name in Point.model_fields
            if name not in _OWN
            and name not in hidden
            and (name not in _SILENT or self._tells(name))
            and len({getattr(p, name) for p in self.points if has(p, name)}) > 1
        )

    def _tells(self, name: str) -> bool:
        """Whether two points differ in this setting alone."""
        apart = {"repeat", *(each for each in _SILENT if each != name)}
        rest = [p.model_dump_json(exclude={*apart, name}) for p in self.points]
        every = {p.model_dump_json(exclude=apart) for p in self.points}
        return len(every) > len(set(rest))

    def values(self, name: str) -> list[Any]:
        """Those that a setting takes, in order; of points that have it."""
        found = {getattr(p, name) for p in self.points if has(p, name)}
        return sorted(found, key=lambda value: (value is None, value))

    def series(self, point: Point, without: Several[str] = ()) -> str:
        """The points that differ from this one in their ranks and in ``without`` alone."""
        return ", ".join([kind(point), *self._settings(point, without)])

    def name(self, point: Point, without: Several[str] = ()) -> str:
        """One point, over its repetitions; or those that differ in ``without`` alone."""
        ranks = [] if point.system == "deepinv" else [count(point.ranks, "rank")]
        return ", ".join([self.series(point, without), *ranks, *self._unnamed(point)])

    def lane(self, point: Point) -> str:
        """Within its series: its ranks, and what isn't named otherwise."""
        return ", ".join([count(point.ranks, "rank"), *self._unnamed(point)])

    def look(self, point: Point, without: Several[str] = ("ranks",)) -> tuple[str, Dash, Marker]:
        """Colour, dash and marker of its series: colour by system, the rest by its settings."""
        # Among points of its own kind: undistributed ones have no tiles, so fewer settings.
        alike = [p for p in self.points if kind(p) == kind(point)]
        variants = list(dict.fromkeys(self._variant(p, without) for p in alike))
        number = variants.index(self._variant(point, without))
        systems = list(dict.fromkeys(kind(p) for p in self.points))
        marker = _MARKERS[(number + systems.index(kind(point))) % len(_MARKERS)]
        return kind(point), _DASHES[number % len(_DASHES)], marker

    def _unnamed(self, point: Point) -> list[str]:
        return [described(point, name) for name in self._hidden]

    def _variant(self, point: Point, without: Several[str]) -> tuple[str, ...]:
        own = () if "ranks" in without else (str(point.ranks),)
        return (*self._settings(point, without), *own)

    def _settings(self, point: Point, without: Several[str]) -> list[str]:
        return [
            described(point, name)
            for name in self.varying
            if name not in without and has(point, name)
        ]


def kind(point: Point) -> str:
    """The system; of shardinv, with the layout. Also the name of its colour."""
    return f"shardinv {point.layout}" if point.system == "shardinv" else point.system


def described(point: Point, name: str) -> str:
    """One setting in words."""
    value = getattr(point, name)
    match name:
        case "size":
            return f"{value}{'²' if point.problem == 'photograph' else '³'}"
        case "tile":
            return "untiled" if value is None else f"tile {value}"
        case "overlap":
            return f"halo {value}"
        case "batch":
            return "any batch" if value is None else f"batch {value}"
        case "quality" | "profile":
            return _SILENT[name][value]
        case "threads":
            return count(value, "thread")
        case "problem" | "task" | "network" | "precision" | "photograph" | "device":
            return str(value)
        case _:
            return f"{name.replace('_', ' ')} {value}"


def file_name(name: str) -> str:
    """A name as that of a file.

    Examples
    --------
    >>> file_name("deepinv.distributed, 512², 2 ranks")
    'deepinv-distributed-512-2-ranks'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def has(point: Point, name: str) -> bool:
    """Whether the setting means anything to the point."""
    if name in ("tile", "overlap", "batch"):
        return point.system != "deepinv" and (name != "overlap" or point.tile is not None)
    if name == "checkpoint":
        return point.task == "train" and point.system != "deepinv"
    if name == "unrolled":
        return point.task == "train"
    return name not in ("photograph", "factor") or point.problem == "photograph"
