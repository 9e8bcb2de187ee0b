"""A study's measurements as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from shardinv.study.analysis.summary import Row
from shardinv.study.plan.point import Point


def size(point: Point) -> str:
    """Side of the image or volume, and how many."""
    return f"{point.size}{'²' if point.problem == 'photograph' else '³'}"


def table(name: str, rows: Sequence[Row]) -> Table:
    """One line for each point; the sentence says what holds it back."""
    found = Table(title=name)
    for title in ("system", "layout", "size", "network", "tile/halo"):
        found.add_column(title, no_wrap=True)
    for title in ("ranks", "s/iteration", "95 %", "speedup", "efficiency", "at equal work"):
        found.add_column(title, justify="right", no_wrap=True)
    found.add_column("MB sent", justify="right")
    found.add_column("PSNR", justify="right")
    found.add_column("what holds it back")
    for row in rows:
        point, scaling = row.point, row.scaling
        middle, low, high = row.seconds
        shared = point.system != "deepinv"
        found.add_row(
            point.system + (" training" if point.task == "train" else ""),
            point.layout if shared else "",
            size(point),
            point.network,
            ("whole" if point.tile is None else f"{point.tile}/{point.overlap}") if shared else "",
            str(point.ranks),
            f"{middle:.3g}",
            f"{low:.3g}–{high:.3g}",
            "" if scaling is None else f"{scaling.speedup:.2f}",
            "" if scaling is None else f"{scaling.efficiency:.1%}",
            ""
            if scaling is None or row.work is None
            else f"{scaling.work_normalised_efficiency:.1%}",
            "" if row.bytes_sent is None else f"{row.bytes_sent / 1e6:.2f}",
            f"{row.psnr_db:.2f}",
            row.limit,
        )
    return found
