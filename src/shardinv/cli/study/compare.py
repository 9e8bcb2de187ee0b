"""Tells what changed from one folder of results to another, and can fail on a regression."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from shardinv.cli.errors import UsageError
from shardinv.cli.study.extra import needing_extra
from shardinv.study.analysis.comparison import Change, Comparison, Tolerance
from shardinv.study.analysis.comparison import compare as compare_rows
from shardinv.study.collection import NoResults, read_collection
from shardinv.study.plan.point import Point

First = Annotated[Path, typer.Argument(metavar="A", help="Folder of results: before.")]
Second = Annotated[Path, typer.Argument(metavar="B", help="Folder of results: after.")]
Fail = Annotated[
    bool, typer.Option("--fail", help="Exit with 1 where B is worse than A beyond the tolerances.")
]
Seconds = Annotated[
    float, typer.Option(min=0, help="How much slower is tolerated, in per cent, beyond chance.")
]
Memory = Annotated[float, typer.Option(min=0, help="How much more memory, in per cent.")]
Psnr = Annotated[float, typer.Option(min=0, help="How much less PSNR, in dB.")]


def compare(
    a: First,
    b: Second,
    fail: Fail = False,
    slower: Seconds = 5.0,
    memory: Memory = 5.0,
    psnr: Psnr = 0.01,
) -> None:
    """Tell what changed from A to B, point by point, with intervals.

    A time counts as changed where the interval of its ratio leaves out 1. Bytes are counted, so any
    more of them is a regression.
    """
    try:
        with needing_extra("a comparison needs"):
            from shardinv.study.report.naming import Naming
        found = compare_rows(read_collection(a).rows, read_collection(b).rows)
    except (NoResults, UsageError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    if not found.changes:
        typer.echo(f"Error: {a} and {b} have no point in common", err=True)
        raise typer.Exit(2)
    name = Naming([change.point for change in found.changes]).name
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(_table(found, name))
    for folder, points in ((a, found.only_first), (b, found.only_second)):
        if points:
            typer.echo(f"{len(points)} points are in {folder} alone")
    tolerance = Tolerance(slower / 100, memory / 100, psnr)
    worse = [
        f"{name(change.point)} {what}"
        for change in found.changes
        for what in change.regressions(tolerance)
    ]
    for line in worse:
        typer.echo(f"worse: {line}", err=fail)
    if not worse:
        typer.echo("nothing is worse beyond the tolerances")
    elif fail:
        raise typer.Exit(1)


def _table(found: Comparison, name: Callable[[Point], str]) -> Table:
    table = Table()
    table.add_column("point")
    for title in ("time B/A", "95 %", "PSNR B−A", "memory B/A", "bytes B/A"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for change in found.changes:
        table.add_row(name(change.point), *_cells(change))
    return table


def _cells(change: Change) -> list[str]:
    middle, low, high = change.ratio
    return [
        f"{middle:.3f}",
        f"{low:.3f}–{high:.3f}",
        f"{change.psnr_db:+.3g} dB",
        "" if change.memory is None else f"{change.memory:.3f}",
        "" if change.bytes_sent is None else f"{change.bytes_sent:.6g}",
        change.verdict,
    ]
