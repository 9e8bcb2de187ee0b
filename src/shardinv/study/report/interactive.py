"""Charts as plotly draws them in the page: plain data, in the colours of a light page.

The page exchanges colours on a dark one (``palette.dark``), and gives the width.
"""

from __future__ import annotations

from math import log10
from typing import Any

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

_LANE = 30  # pixels
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def plotly(chart: AnyChart) -> dict[str, Any]:
    """Traces and layout, as ``Plotly.newPlot`` takes them."""
    match chart:
        case LineChart():
            return _lines(chart)
        case BarChart():
            return _bars(chart)
        case TimelineChart():
            return _timeline(chart)


def _lines(chart: LineChart) -> dict[str, Any]:
    traces = [_line(line, chart) for line in chart.lines]
    layout = _layout(chart, 340, {**_axis(chart.x), **_ticks(chart.x)})
    layout["yaxis"] = {**_axis(chart.y), **_ticks(chart.y)}
    return {"data": traces, "layout": layout}


def _line(line: Line, chart: LineChart) -> dict[str, Any]:
    ink = colour(line.colour)
    value = "%{y:.1%}" if chart.y.percent else "%{y:.4g}"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines" if line.marker == "none" else "lines+markers",
        "name": line.name,
        "showlegend": bool(line.name),
        "x": list(line.x),
        "y": list(line.y),
        "line": {"color": ink, "width": 2, "dash": line.dash},
        "hovertemplate": f"{chart.x.title} %{{x:g}}: {value}<extra>{line.name}</extra>",
    }
    if line.marker != "none":
        trace["marker"] = {"symbol": line.marker, "size": 8, "color": ink}
    if line.low:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [high - y for y, high in zip(line.y, line.high, strict=True)],
            "arrayminus": [y - low for y, low in zip(line.y, line.low, strict=True)],
            "color": ink,
            "thickness": 1.5,
            "width": 5,
        }
    return trace


def _bars(chart: BarChart) -> dict[str, Any]:
    rows, heads = places(chart.lanes)
    value = "%{x:.1%}" if chart.x.percent else "%{x:.4g}"
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part.name,
            "x": list(part.values),
            "y": rows,
            "width": 0.72,
            "marker": _filled(part.colour, part.hatched),
            "hovertemplate": f"%{{customdata}}: {value}<extra>{part.name}</extra>",
            "customdata": [f"{lane.group}, {lane.label}".strip(", ") for lane in chart.lanes],
        }
        for part in chart.parts
        if any(part.values)
    ]
    if chart.whiskers:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [x for low, high in chart.whiskers for x in (low, high, None)],
                "y": [y for row in rows for y in (row, row, None)],
                "line": {"color": colour("ink"), "width": 2},
                "showlegend": False,
                "hoverinfo": "skip",
            }
        )
    layout = _layout(chart, 0, {**_axis(chart.x), **_ticks(chart.x)})
    _lay_lanes(layout, chart, rows, heads, _LANE)
    return {"data": traces, "layout": {**layout, "barmode": "relative"}}


def _timeline(chart: TimelineChart) -> dict[str, Any]:
    rows, heads = places(chart.lanes)
    kinds = dict.fromkeys((s.colour, s.hatched, s.upper) for s in chart.stretches)
    traces = []
    for ink, hatched, upper in kinds:
        own = [
            s for s in chart.stretches if (s.colour, s.hatched, s.upper) == (ink, hatched, upper)
        ]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": ink,
                "base": [s.start for s in own],
                "x": [s.end - s.start for s in own],
                "y": [rows[s.lane] + (-0.2 if upper else 0.2) for s in own],
                "width": 0.38,
                "marker": _filled(ink, hatched),
                "hovertemplate": "%{customdata}<extra></extra>",
                "customdata": [f"{s.name}: {s.detail}" for s in own],
            }
        )
    layout = _layout(chart, 0, {**_axis(chart.x), **_ticks(chart.x)})
    _lay_lanes(layout, chart, rows, heads, 46)
    return {"data": traces, "layout": {**layout, "barmode": "overlay"}}


def _lay_lanes(
    layout: dict[str, Any],
    chart: BarChart | TimelineChart,
    rows: list[float],
    heads: list[tuple[float, str]],
    lane: int,
) -> None:
    slots = rows[-1] + 1
    layout["height"] = round(slots * lane + 74)
    layout["yaxis"] = {
        **_axis(chart.y),
        "range": [slots - 0.4, -0.6],
        "tickvals": rows,
        "ticktext": [each.label for each in chart.lanes],
        "showgrid": False,
        "showline": False,
        "ticks": "",
        "ticklabelstandoff": 6,
    }
    layout["annotations"] = [
        {
            "text": f"<b>{name}</b>",
            "xref": "paper",
            "x": 0,
            "xanchor": "left",
            "yref": "y",
            "y": place + 0.1,
            "yanchor": "middle",
            "showarrow": False,
            "align": "left",
        }
        for place, name in heads
    ]


def _layout(chart: AnyChart, height: int, x: dict[str, Any]) -> dict[str, Any]:
    return {
        "height": height,
        "font": {"family": _FONT, "size": 13, "color": colour("ink")},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 12, "r": 14, "t": 10, "b": 12},
        "xaxis": x,
        # The page has legends of its own, which find their place at any width.
        "showlegend": False,
        "hoverlabel": {"bgcolor": colour("page"), "font": {"color": colour("ink")}},
        "modebar": {
            "bgcolor": colour("page"),
            "color": colour("axis"),
            "activecolor": colour("ink"),
        },
        # A finger on a figure scrolls the page; the buttons zoom.
        "dragmode": False,
        "bargap": 0,
    }


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "title": {"text": axis.title, "standoff": 8},
        "automargin": True,
        "exponentformat": "power",
        "minexponent": 5,
        "gridcolor": colour("grid"),
        "linecolor": colour("axis"),
        "tickcolor": colour("axis"),
        "showline": True,
        "ticks": "outside",
        "zeroline": False,
    }


def _ticks(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"tickformat": ".0%"} if axis.percent else {}
    if axis.limits is not None:
        low, high = axis.limits
        found["range"] = [log10(low), log10(high)] if axis.scale == "log" else [low, high]
    if axis.scale == "log":
        found["type"] = "log"
    if axis.ticks:
        found["tickvals"] = [place for place, _ in axis.ticks]
        found["ticktext"] = [text for _, text in axis.ticks]
    return found


def _filled(name: str, hatched: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"color": colour(name), "line": {"width": 0}}
    if hatched:
        found["pattern"] = {
            "shape": "/",
            "size": 6,
            "solidity": 0.25,
            "fgcolor": colour("page"),
            "fillmode": "overlay",
        }
    return found
