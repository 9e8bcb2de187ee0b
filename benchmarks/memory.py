"""Memory of a rank against the number of ranks, on replicated and on sharded images.

``python -m benchmarks.memory``: a table, a figure and the numbers. Each measurement runs in fresh
processes (``memory_rank``); ``README.md`` here says what the columns mean.
"""

from __future__ import annotations

import pickle
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from typer import Option

from benchmarks.case import LAYOUTS, Tiling
from benchmarks.memory_rank import MemoryRun
from benchmarks.processes import machine, run_ranks
from shardinv.io import atomic_file, write_json

RANKS = [1, 2, 4]
_COLOURS = {"replicated": "#d55e00", "sharded": "#0072b2"}


def summary(run: MemoryRun, result: list[dict[str, Any]] | str) -> dict[str, Any]:
    """Numbers of one measurement for the table and the file, of the rank with the most."""
    row: dict[str, Any] = {"layout": run.layout, "ranks": run.ranks}
    if isinstance(result, str):
        return row | {"failure": result}
    return row | {
        "peak_bytes": max(r["peak"] for r in result),
        "peak_above_set_up_bytes": max(r["peak"] - r["before"] for r in result),
        "held_above_set_up_bytes": max(r["rest"] - r["before"] for r in result),
        "all_ranks_peak_bytes": sum(r["peak"] for r in result),
    }


def table_of(rows: Sequence[dict[str, Any]], image: int, title: str) -> Table:
    """A line for each layout and number of ranks."""
    table = Table(title=title)
    table.add_column("layout", no_wrap=True)
    names = ("ranks", "peak above MB", "in images", "of 1 rank", "held MB", "of 1 rank", "peak MB")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    layout = ""
    for row in rows:
        if row["layout"] != layout:
            table.add_section()
            layout = row["layout"]
        if "failure" in row:
            table.add_row(row["layout"], str(row["ranks"]), "[red]failed[/]")
            continue
        alone = next((r for r in rows if r["layout"] == layout and r["ranks"] == 1), None)
        known = alone is not None and "failure" not in alone
        peak, held = row["peak_above_set_up_bytes"], row["held_above_set_up_bytes"]
        table.add_row(
            row["layout"],
            str(row["ranks"]),
            f"{peak / 1e6:.0f}",
            f"{peak / image:.2f}",
            f"{peak / alone['peak_above_set_up_bytes']:.3f}" if alone and known else "",
            f"{held / 1e6:.0f}",
            f"{held / alone['held_above_set_up_bytes']:.3f}" if alone and known else "",
            f"{row['peak_bytes'] / 1e6:.0f}",
        )
    return table


def draw(path: Path, rows: Sequence[dict[str, Any]], size: int) -> None:
    """Memory of the largest rank against the number of ranks, beside the ideal."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (
        ("peak_above_set_up_bytes", "At most, during an iteration"),
        ("held_above_set_up_bytes", "Held between iterations"),
    )
    for axes, (field, title) in zip(figure.subplots(1, 2), panels, strict=True):
        for layout, colour in _COLOURS.items():
            points = [
                (row["ranks"], row[field] / 1e6)
                for row in rows
                if row["layout"] == layout and "failure" not in row
            ]
            if not points:
                continue
            ranks, values = zip(*points, strict=True)
            axes.plot(ranks, values, "o-", color=colour, label=layout)
            for place, value in points:
                axes.annotate(
                    f"{value:.0f}",
                    (place, value),
                    (0, 7 if layout == "replicated" else -16),
                    textcoords="offset points",
                    ha="center",
                )
            if layout == "sharded":
                ideal = [values[0] * ranks[0] / n for n in ranks]
                axes.plot(ranks, ideal, ":", color="#555555", label="1/ranks of the first")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        known = sorted({row["ranks"] for row in rows})
        axes.set_xticks(known, [str(n) for n in known])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.set_xlabel("ranks")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.margins(x=0.1, y=0.2)
    first = figure.axes[0]
    first.set_ylabel("MB of the largest rank, above set-up")
    first.legend()
    figure.suptitle(f"Memory of a rank, {size} × {size} colour image, float32")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, dpi=150)


def main(
    size: Annotated[int, Option(help="side of the image in pixels")] = 4096,
    ranks: Annotated[list[int], Option(help="numbers of processes")] = RANKS,
    network: Annotated[str, Option(help="identity (no cost), ffdnet (minutes)")] = "identity",
    frames: Annotated[int, Option(help="operators, each a blur and a down-sampling by two")] = 8,
    tiling: Annotated[str, Option(help="PATCH/OVERLAP")] = "256/32",
    iterations: Annotated[int, Option(help="of each run")] = 2,
    timeout: Annotated[float, Option(help="seconds that one run may take")] = 1800.0,
    output: Annotated[Path, Option(help="where the numbers go")] = Path("outputs/memory.json"),
    figure: Annotated[Path, Option(help="where the figure goes")] = Path("outputs/memory.png"),
) -> None:
    """Measure the memory of a rank on replicated and on sharded images."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console()
    console = console if console.is_terminal else Console(width=130)
    if network not in ("identity", "ffdnet"):
        raise typer.BadParameter(f"--network is identity or ffdnet, got {network}")
    try:
        tiles = Tiling.parse(tiling)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    runs = [
        MemoryRun(layout, size, n, network, frames, tiles.patch_size, tiles.overlap, iterations)
        for layout in LAYOUTS
        for n in ranks
    ]
    image = 3 * size * size * 4
    told = machine()
    options = {
        "size": size,
        "image_bytes": image,
        "network": network,
        "frames": frames,
        "tiles": str(tiles),
        "iterations": iterations,
    }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="memory-") as name, Progress(console=console) as bar:
        task = bar.add_task("measuring", total=len(runs))
        for number, run in enumerate(runs):
            bar.update(task, description=f"{run.layout}, {run.ranks} ranks")
            folder = Path(name, str(number))
            folder.mkdir()
            (folder / "run.pickle").write_bytes(pickle.dumps(run))
            result = run_ranks("benchmarks.memory_rank", folder, run.ranks, timeout)
            rows.append(summary(run, result))
            write_json(output, {"machine": told, "options": options, "rows": rows})
            bar.advance(task)
    title = (
        f"{size}², {frames} operators, {network}, tiles {tiles}; an image is {image / 1e6:.0f} MB"
    )
    console.print(table_of(rows, image, title))
    for row in rows:
        if "failure" in row:
            console.print(f"{row['layout']}, {row['ranks']} ranks: {row['failure']}")
    draw(figure, rows, size)
    console.print(f"written to {output} and {figure}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
