"""Measures a study's points one after the other, each in fresh processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shardinv.cli.configuration import read_yaml, settings_of
from shardinv.cli.errors import UsageError
from shardinv.cli.launch import run_workers
from shardinv.cli.study.point import Order
from shardinv.cli.study.results import Results
from shardinv.cli.study.table import table
from shardinv.study.analysis.summary import summarise
from shardinv.study.plan.grids import Study
from shardinv.study.plan.point import Point

study = typer.Typer(no_args_is_help=True, help="Measure how a reconstruction scales.")

Configuration = Annotated[Path, typer.Argument(help="A YAML file: name, common, grids, repeats.")]
Output = Annotated[
    Path | None, typer.Option(help="Folder for results; default: outputs/ and the file's name.")
]


@study.command()
def run(config: Configuration, output: Output = None) -> None:
    """Measure every point of a configuration that has not been measured yet, and show all.

    Each point runs in processes of its own on this machine. A point that fails is recorded with its
    error and tried again by the next run.
    """
    plan, results = _read(config, output)
    points = plan.points
    left = [point for point in points if not results.has(point)]
    typer.echo(f"{len(points)} points, {len(points) - len(left)} measured already")
    failed = [point for point in _progress(left) if not _measure(point, results)]
    _show(plan, results)
    if failed:
        typer.echo(f"Error: {len(failed)} of {len(points)} points failed", err=True)
        raise typer.Exit(1)


@study.command()
def show(config: Configuration, output: Output = None) -> None:
    """Show what has been measured."""
    _show(*_read(config, output))


def _read(config: Path, output: Path | None) -> tuple[Study, Results]:
    try:
        plan = settings_of(
            Study, read_yaml(config, "the keys name, common, grids, repeats"), config
        )
    except UsageError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    return plan, Results(output or Path("outputs") / config.stem)


def _measure(point: Point, results: Results) -> bool:
    error = results.error(point)
    error.unlink(missing_ok=True)
    status = run_workers(
        "study-point",
        Order(point=point, file=results.file(point)),
        point.ranks,
        log=error,
        lighter="a smaller size or tile",
    )
    if status == 130:
        raise typer.Exit(130)
    return status == 0


def _progress(points: list[Point]) -> Iterator[Point]:
    """The points one by one, with a bar on a terminal and a line each elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(points))
        for point in points:
            words = f"{point.system} {point.layout} {point.size}² on {point.ranks}"
            progress.update(task, description=words)
            if not console.is_terminal:
                typer.echo(words)
            yield point
            progress.advance(task)


def _show(plan: Study, results: Results) -> None:
    rows = summarise(results.read(plan.points))
    # In a file or a pipe nobody sees the width.
    console = Console() if Console().is_terminal else Console(width=200)
    console.print(table(plan.name, rows))
