"""What a figure shows, in plain data: drawn with plotly for the page, with matplotlib for files.

Nothing here knows a plotting library, and nothing here computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Dash = Literal["solid", "dash", "dot", "dashdot"]
Marker = Literal["circle", "square", "diamond", "triangle-up", "x", "none"]


@dataclass(frozen=True)
class Axis:
    """An axis.

    Parameters
    ----------
    title
        Quantity and unit.
    scale
        ``log`` needs ticks and limits; where ``linear`` has none, whoever draws chooses them.
    ticks
        Places and what is written there.
    limits
        What is shown.
    percent
        Whether values are shares, to be written in per cent.
    """

    title: str
    scale: Literal["linear", "log"] = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float] | None = None
    percent: bool = False


@dataclass(frozen=True)
class Line:
    """Values at places; drawn in this order.

    Parameters
    ----------
    name
        In the legend; empty: not there.
    x, y
        Of each value.
    low, high
        Intervals of the values; empty where there are none.
    colour
        A name of :data:`shardinv.study.report.palette.COLOURS`.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dash: Dash = "solid"
    marker: Marker = "circle"


@dataclass(frozen=True)
class Lane:
    """A row of a chart of bars.

    Parameters
    ----------
    label
        At its left.
    group
        Rows of one group stand together under its name.
    """

    label: str
    group: str = ""


@dataclass(frozen=True)
class Part:
    """One part of all bars, which are stacked: a value for each lane.

    Parameters
    ----------
    hatched
        Told apart by a pattern too.
    """

    name: str
    values: tuple[float, ...]
    colour: str
    hatched: bool = False


@dataclass(frozen=True)
class Stretch:
    """From when to when a lane did something.

    Parameters
    ----------
    upper
        In the upper half of the lane, or in the lower one.
    detail
        What else to say where there is room.
    """

    lane: int
    name: str
    start: float
    end: float
    colour: str
    upper: bool = True
    hatched: bool = False
    detail: str = ""


@dataclass(frozen=True)
class Chart:
    """What all figures have.

    Parameters
    ----------
    key
        Name of its files.
    title
        What it shows.
    says
        A sentence or two: what one sees.
    notes
        More sentences, one for each point.
    x, y
        Axes.
    """

    key: str
    title: str
    says: str
    x: Axis
    y: Axis
    notes: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class LineChart(Chart):
    """Lines with intervals."""

    lines: tuple[Line, ...]


@dataclass(frozen=True)
class BarChart(Chart):
    """Stacked bars that lie, one to a lane; ``y`` has no ticks of its own.

    Parameters
    ----------
    whiskers
        Intervals of the whole bars; empty where there are none.
    """

    lanes: tuple[Lane, ...]
    parts: tuple[Part, ...]
    whiskers: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class TimelineChart(Chart):
    """What each lane did when; ``y`` has no ticks of its own."""

    lanes: tuple[Lane, ...]
    stretches: tuple[Stretch, ...]


AnyChart = LineChart | BarChart | TimelineChart


@dataclass(frozen=True)
class Figure:
    """One chart, or several of one kind to choose from.

    Parameters
    ----------
    choices
        What each chart is chosen by, and the chart.
    """

    choices: tuple[tuple[str, AnyChart], ...]

    @property
    def key(self) -> str:
        """Of the first chart."""
        return self.choices[0][1].key

    @classmethod
    def of(cls, chart: AnyChart) -> Figure:
        """Of one chart."""
        return cls(((chart.title, chart),))


def places(lanes: Sequence[Lane]) -> tuple[list[float], list[tuple[float, str]]]:
    """Where lanes lie, from 0 downwards, and where the names of groups stand, each above its own.

    Examples
    --------
    >>> places([Lane("1", "a"), Lane("2", "a"), Lane("1", "b")])
    ([1.0, 2.0, 4.0], [(0.0, 'a'), (3.0, 'b')])
    >>> places([Lane("rank 0"), Lane("rank 1")])
    ([0.0, 1.0], [])
    """
    found, heads, place, last = list[float](), list[tuple[float, str]](), 0.0, ""
    for lane in lanes:
        if lane.group != last:
            heads.append((place, lane.group))
            place, last = place + 1, lane.group
        found.append(place)
        place += 1
    return found, heads
