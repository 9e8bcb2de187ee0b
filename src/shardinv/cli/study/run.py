"""Measures a study's points, each in fresh processes, here or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from shardinv.cli.configuration import read_yaml, settings_of
from shardinv.cli.errors import UsageError
from shardinv.cli.study.compare import compare
from shardinv.cli.study.extra import needing_extra
from shardinv.cli.study.keys import keys_in_words
from shardinv.cli.study.launch.launcher import Launcher
from shardinv.cli.study.launch.local import LocalLauncher
from shardinv.cli.study.launch.progress import follow
from shardinv.cli.study.record import record_run
from shardinv.cli.study.report import report
from shardinv.cli.study.results import Results
from shardinv.cli.study.schema import schema
from shardinv.cli.study.table import table
from shardinv.study.analysis.summary import summarise
from shardinv.study.plan.grids import Study
from shardinv.study.plan.point import Point

if TYPE_CHECKING:
    from shardinv.cli.study.launch.slurm import SlurmLauncher

study = typer.Typer(no_args_is_help=True, help="Measure how a reconstruction scales.")
study.command()(report)
study.command()(compare)
study.command()(schema)

Configuration = Annotated[
    Path, typer.Argument(help="A YAML file: name, common, grids, repeats, launch.")
]
Output = Annotated[
    Path | None, typer.Option(help="Folder for results; default: outputs/ and the file's name.")
]
Slurm = Annotated[
    bool, typer.Option("--slurm", help="Run points as SLURM jobs, as by launch: {how: slurm}.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Write and print the jobs' scripts, and submit nothing.")
]


@study.command(epilog=keys_in_words())
def run(
    config: Configuration, output: Output = None, slurm: Slurm = False, dry_run: DryRun = False
) -> None:
    """Measure every point of a configuration that has not been measured yet, and show all.

    Each point runs in processes of its own, on this machine or as a SLURM job. A point that fails
    is recorded with its error and tried again by the next run.
    """
    plan, results = _read(config, output)
    points = plan.points
    left = results.left(points)
    typer.echo(f"{len(points)} points, {len(points) - len(left)} measured already")
    slurm = slurm or plan.launch.how == "slurm"
    try:
        if dry_run:
            if not slurm:
                raise UsageError("--dry-run shows the scripts of SLURM jobs: add --slurm")
            _dry_run(_slurm(plan, results), left)
            return
        launcher = _launcher(plan, results, slurm)
        record_run(results.folder, plan, measures=bool(left))
        failed = follow(launcher, left)
    except UsageError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        if slurm:
            typer.echo("\nshardinv: interrupted, all jobs are cancelled", err=True)
        raise typer.Exit(130) from None
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


def _launcher(plan: Study, results: Results, slurm: bool) -> Launcher:
    return _slurm(plan, results) if slurm else LocalLauncher(results)


def _slurm(plan: Study, results: Results) -> SlurmLauncher:
    with needing_extra("jobs need"):
        from shardinv.cli.study.launch.slurm import SlurmLauncher
    return SlurmLauncher(plan.launch, results)


def _dry_run(launcher: SlurmLauncher, points: Sequence[Point]) -> None:
    for path, script in launcher.write(points):
        typer.echo(f"# {path}\n{script}")
    typer.echo(f"{len(points)} scripts written, nothing submitted")


def _show(plan: Study, results: Results) -> None:
    rows = summarise(results.read(plan.points), plan.scaling)
    # In a file or a pipe nobody sees the width.
    console = Console() if Console().is_terminal else Console(width=200)
    console.print(table(plan.name, rows))
