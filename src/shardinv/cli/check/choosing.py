"""Which point of a study is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardinv.cli.errors import UsageError
from shardinv.study.plan.grids import Study
from shardinv.study.plan.point import Point

_SHOWN = (
    "problem", "task", "size", "ranks", "layout", "network", "tile", "overlap", "batch",
    "precision", "frames", "device", "threads",
)  # fmt: skip


def distinct_points(study: Study) -> list[Point]:
    """The points of ``shardinv``, each once, in the study's order; of the others nothing is known.

    Raises
    ------
    UsageError
        If there is none.
    """
    # What doesn't change what is checked: the same run again, longer, or looked at more closely.
    alike = {"repeat": 0, "iterations": 1, "quality": False, "profile": False}
    found: dict[str, Point] = {}
    for point in study.points:
        if point.system == "shardinv":
            found.setdefault(point.model_copy(update=alike).key, point)
    if not found:
        raise UsageError(
            "the study has no point of the system shardinv, and only those are checked"
        )
    return list(found.values())


def choose_point(points: Sequence[Point], ranks: int | None, number: int | None) -> Point:
    """One of the points: that of a number, or the first of those with most ranks.

    Parameters
    ----------
    points
        From :func:`distinct_points`.
    ranks
        Only points with so many.
    number
        Which of them, from 1.

    Raises
    ------
    UsageError
        If there is none.
    """
    left = [p for p in points if ranks is None or p.ranks == ranks]
    if not left:
        known = sorted({point.ranks for point in points})
        raise UsageError(
            f"no point has {ranks} ranks; there are points with {', '.join(map(str, known))}"
        )
    if number is None:
        return max(left, key=lambda point: point.ranks)
    if not 1 <= number <= len(left):
        raise UsageError(f"--point {number}: there are {len(left)} points; --list shows them")
    return left[number - 1]


def describe(point: Point, among: Sequence[Point] = ()) -> str:
    """A point in words: its settings, or of several points those in which they differ.

    Examples
    --------
    >>> describe(Point(ranks=2), [Point(ranks=1), Point(ranks=2)])
    '2 ranks'
    """
    names = [n for n in _SHOWN if len(among) < 2 or len({getattr(p, n) for p in among}) > 1]
    return ", ".join(_setting(name, getattr(point, name)) for name in names)


def _setting(name: str, value: Any) -> str:
    if name == "ranks":
        return f"{value} rank{'s' * (value != 1)}"
    return f"{name} {'whole' if value is None and name == 'tile' else value}"
