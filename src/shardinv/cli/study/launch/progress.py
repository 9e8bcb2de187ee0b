"""Shows how far a study is while its points run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shardinv.cli.study.launch.launcher import Launcher
from shardinv.study.plan.point import Point


def follow(launcher: Launcher, points: Sequence[Point]) -> list[Point]:
    """Run points with a bar on a terminal, and with lines elsewhere.

    Returns
    -------
    list of Point
        Those that failed.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    failed = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(points))

        def tell(what: str) -> None:
            progress.update(task, description=what)
            if not console.is_terminal:
                typer.echo(what)

        # Closed whatever happens here, so that nothing goes on behind our back.
        with contextlib.closing(launcher.run(points, tell)) as run:
            for ended in run:
                progress.advance(task)
                if not ended.measured:
                    failed.append(ended.point)
    return failed
