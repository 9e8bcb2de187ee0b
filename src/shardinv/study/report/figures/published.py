"""The published measurements by themselves: seconds of another machine, not to compare."""

from __future__ import annotations

from shardinv.study.published import published_communication, published_points
from shardinv.study.report.axes import counted, logarithmic
from shardinv.study.report.charts import Axis, BarChart, Lane, Line, LineChart, Part


def published_stages() -> BarChart:
    """Seconds by stage."""
    points = published_points()
    return BarChart(
        "published-stages",
        "Published times by stage",
        "Strong scaling of deepinv.distributed on V100 GPUs. What is called rest here is mostly "
        "the scoring of the iterate, which was timed with the iteration: it grows with the pixels, "
        "not with the GPUs.",
        Axis("time of an iteration in s"),
        Axis(""),
        tuple(Lane(f"{p.workers} GPU{'s' * (p.workers > 1)}", f"{p.side}²") for p in points),
        (
            Part("physics", tuple(p.physics for p in points), "physics"),
            Part("denoiser", tuple(p.denoise for p in points), "denoiser"),
            Part("rest", tuple(p.other for p in points), "rest"),
        ),
    )


def published_talk() -> LineChart:
    """Compute and communication."""
    found = [point for point in published_communication() if point.tiled]
    lines = []
    for number, problem in enumerate(dict.fromkeys(point.problem for point in found)):
        own = [point for point in found if point.problem == problem]
        x = tuple(float(point.workers) for point in own)
        marker, colour = ("square", "backward") if number else ("circle", "published")
        for name, values, dash in (
            ("compute", tuple(point.compute for point in own), "solid"),
            ("communication", tuple(point.communication for point in own), "dot"),
        ):
            kept = [(a, b) for a, b in zip(x, values, strict=True) if b > 0]
            lines.append(
                Line(
                    f"{problem}: {name}",
                    tuple(a for a, _ in kept),
                    tuple(b for _, b in kept),
                    colour,
                    dash=dash,  # type: ignore[arg-type]
                    marker=marker,  # type: ignore[arg-type]
                )
            )
    return LineChart(
        "published-communication",
        "Published compute and communication",
        "Seconds of kernels that compute and of those that communicate, under the profiler; "
        "waiting for a slower rank is part of communication.",
        counted("GPUs", [x for line in lines for x in line.x]),
        logarithmic("time of an iteration in s", [y for line in lines for y in line.y]),
        tuple(lines),
    )
