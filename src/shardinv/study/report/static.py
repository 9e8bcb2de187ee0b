"""Charts as files, drawn with matplotlib on white, for papers and slides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator, PercentFormatter

from shardinv.io.figures import STYLE, new_figure, save_figure
from shardinv.study.report.charts import (
    AnyChart,
    Axis,
    BarChart,
    Line,
    LineChart,
    TimelineChart,
    places,
)
from shardinv.study.report.palette import colour

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "x": "X",
    "none": "",
}
_FORMATS = ("png", "svg")


def save_chart(chart: AnyChart, folder: Path) -> list[Path]:
    """Write PNG and SVG, each whole or not at all."""
    # Text of an SVG stays text, and the same chart gives the same file.
    style = {**STYLE, "svg.fonttype": "none", "svg.hashsalt": chart.key}
    files = [folder / f"{chart.key}.{suffix}" for suffix in _FORMATS]
    with mpl.rc_context(style):
        figure = draw(chart)
        for file in files:
            save_figure(figure, file)
    return files


def draw(chart: AnyChart) -> Figure:
    """The figure, with title and legend."""
    if isinstance(chart, LineChart):
        height = 4.3 + 0.19 * ((len(chart.lines) + 1) // 2)
    else:
        slots = places(chart.lanes)[0][-1] + 1
        height = 1.7 + slots * (0.28 if isinstance(chart, BarChart) else 0.44)
    figure = new_figure(7.2, height, layout="constrained")
    axes = figure.add_subplot()
    match chart:
        case LineChart():
            _lines(axes, chart)
        case BarChart():
            _bars(axes, chart)
        case TimelineChart():
            _timeline(axes, chart)
    axes.set_axisbelow(True)
    handles, names = axes.get_legend_handles_labels()
    # The title is the legend's: both are above the axes, and so they don't lie over each other.
    figure.legend(
        handles,
        names,
        loc="outside upper left",
        ncols=2 if max(map(len, names), default=0) > 18 else 4,
        frameon=False,
        handlelength=3.2,
        title=chart.title,
        alignment="left",
        title_fontproperties={"weight": "bold", "size": 11},
    )
    return figure


def _lines(axes: Axes, chart: LineChart) -> None:
    for line in chart.lines:
        _line(axes, line)
    _scale(axes, "x", chart.x)
    _scale(axes, "y", chart.y)
    axes.grid(color=colour("grid"), linewidth=0.6)


def _line(axes: Axes, line: Line) -> None:
    style: dict[str, Any] = {
        "color": colour(line.colour),
        "linestyle": _DASHES[line.dash],
        "marker": _MARKERS[line.marker],
        "markersize": 5,
        "linewidth": 1.6,
        "label": line.name or "_nolegend_",
    }
    if not line.low:
        axes.plot(line.x, line.y, **style)
        return
    below = [y - low for y, low in zip(line.y, line.low, strict=True)]
    above = [high - y for y, high in zip(line.y, line.high, strict=True)]
    axes.errorbar(line.x, line.y, yerr=(below, above), capsize=3, **style)


def _bars(axes: Axes, chart: BarChart) -> None:
    rows, heads = places(chart.lanes)
    right, left = [0.0] * len(rows), [0.0] * len(rows)
    for part in chart.parts:
        if not any(part.values):
            continue
        # Parts below zero are stacked to the left.
        starts = [r if v >= 0 else le for v, r, le in zip(part.values, right, left, strict=True)]
        axes.barh(rows, part.values, 0.72, starts, label=part.name, **_filled(part))
        right = [r + max(v, 0) for r, v in zip(right, part.values, strict=True)]
        left = [le + min(v, 0) for le, v in zip(left, part.values, strict=True)]
    for row, (low, high) in zip(rows, chart.whiskers, strict=False):
        axes.plot([low, high], [row, row], color=colour("ink"), linewidth=1.6)
    _lay_lanes(axes, chart, rows, heads)


def _timeline(axes: Axes, chart: TimelineChart) -> None:
    rows, heads = places(chart.lanes)
    named = set[str]()
    for s in chart.stretches:
        place = rows[s.lane] + (-0.2 if s.upper else 0.2)
        label = "_nolegend_" if s.colour in named else s.colour
        axes.barh(place, s.end - s.start, 0.38, s.start, label=label, **_filled(s))
        named.add(s.colour)
    _lay_lanes(axes, chart, rows, heads)


def _lay_lanes(
    axes: Axes,
    chart: BarChart | TimelineChart,
    rows: list[float],
    heads: list[tuple[float, str]],
) -> None:
    _scale(axes, "x", chart.x)
    axes.set_ylim(rows[-1] + 0.6, -0.6)
    axes.yaxis.set_major_locator(FixedLocator(rows))
    axes.yaxis.set_major_formatter(FixedFormatter([lane.label for lane in chart.lanes]))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=colour("grid"), linewidth=0.6)
    for place, name in heads:
        where = axes.get_yaxis_transform()
        axes.text(0, place + 0.1, name, transform=where, va="center", fontweight="bold")


def _scale(axes: Axes, which: str, axis: Axis) -> None:
    own = axes.xaxis if which == "x" else axes.yaxis
    own.set_label_text(axis.title)
    if axis.scale == "log":
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    if axis.ticks:
        own.set_major_locator(FixedLocator([place for place, _ in axis.ticks]))
        own.set_major_formatter(FixedFormatter([text for _, text in axis.ticks]))
        own.set_minor_locator(NullLocator())
    elif axis.percent:
        own.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if axis.limits is not None:
        (axes.set_xlim if which == "x" else axes.set_ylim)(*axis.limits)


def _filled(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"facecolor": colour(part.colour), "edgecolor": "white", "linewidth": 0}
    return {**found, "hatch": "////"} if part.hatched else found
