"""Lines of a quantity against a setting of the points, one line for each series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from shardinv.study.analysis.summary import Row
from shardinv.study.plan.point import Point
from shardinv.study.report.axes import counted
from shardinv.study.report.charts import Axis, Line
from shardinv.study.report.naming import Naming, has

# A value, or a value with its interval; None where it isn't known.
Value = float | tuple[float, float, float] | None

TITLES = {
    "ranks": "ranks",
    "size": "side of the image in pixels",
    "tile": "side of a tile in pixels, without its halo",
    "overlap": "halo in pixels",
    "batch": "tiles in one call of the network",
    "threads": "threads of a rank",
    "frames": "operators",
    "unrolled": "unrolled iterations",
}


def curves(
    rows: Iterable[Row], naming: Naming, against: str, value: Callable[[Row], Value]
) -> list[Line]:
    """One line for each series: points that differ in ``against`` alone.

    Parameters
    ----------
    rows
        What to draw. A point that doesn't have the setting (undistributed, of tiles) is a
        horizontal line.
    naming
        Of all points.
    against
        A setting: one of :data:`TITLES`.
    value
        The quantity of a row.
    """
    found: dict[str, list[tuple[float, tuple[float, float, float]]]] = defaultdict(list)
    first: dict[str, Row] = {}
    for row in rows:
        given = value(row)
        if given is None:
            continue
        triple = given if isinstance(given, tuple) else (given, given, given)
        name = line_name(naming, row.point, against)
        first.setdefault(name, row)
        found[name].append((place(row.point, against), triple))
    spread = [
        x for name, known in found.items() for x, _ in known if has(first[name].point, against)
    ]
    lines = []
    for name, pairs in found.items():
        point = first[name].point
        if has(point, against):
            lines.append(_line(name, sorted(pairs), naming, point, against))
        elif spread:
            (x_low, x_high), (_, (y, _, _)) = (min(spread), max(spread)), pairs[0]
            flat = _line(name, [(x_low, (y, y, y)), (x_high, (y, y, y))], naming, point, against)
            lines.append(replace(flat, marker="none", dash="dash"))
    return lines


def axis(lines: Iterable[Line], against: str) -> Axis:
    """The axis of the setting, with a tick at each value; ranks and sizes logarithmic."""
    values = [x for line in lines for x in line.x]
    return counted(TITLES[against], values, logarithmic=against != "overlap")


def line_name(naming: Naming, point: Point, against: str) -> str:
    """What the line of a point is called."""
    if against == "ranks":
        return naming.series(point)
    return naming.name(point, {against})


def place(point: Point, against: str) -> float:
    """Where on the axis: the whole image is a tile of its size."""
    given = getattr(point, against)
    return float(point.size if given is None and against == "tile" else given or 0)


def _line(
    name: str,
    pairs: list[tuple[float, tuple[float, float, float]]],
    naming: Naming,
    point: Point,
    against: str,
) -> Line:
    colour, dash, marker = naming.look(point, {against})
    values = [triple for _, triple in pairs]
    certain = all(low == y == high for y, low, high in values)
    return Line(
        name,
        tuple(x for x, _ in pairs),
        tuple(y for y, _, _ in values),
        colour,
        () if certain else tuple(low for _, low, _ in values),
        () if certain else tuple(high for _, _, high in values),
        dash,
        marker,
    )
