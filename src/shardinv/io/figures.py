"""How figures that are files look, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shardinv.io.atomic import atomic_file

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
}


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """An empty figure of a size in inches, on white."""
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", **options)
    FigureCanvasAgg(figure)  # draws without a display, and without pyplot's global state
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary)
