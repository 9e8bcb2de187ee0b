"""Reads a study, chooses a point, and starts or joins its ranks."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from shardinv.cli.check.choosing import choose_point, describe, distinct_points
from shardinv.cli.check.lines import console, show_head
from shardinv.cli.check.ranks import Order, run_check
from shardinv.cli.configuration import read_yaml, settings_of
from shardinv.cli.errors import UsageError
from shardinv.cli.launch import launched_by_other, run_workers
from shardinv.context.environment import detect_launch
from shardinv.study.checks.load import load_now
from shardinv.study.plan.grids import Study
from shardinv.study.plan.point import Point


def check(
    config: Annotated[Path, typer.Argument(help="A study: what 'shardinv study run' takes.")],
    ranks: Annotated[
        int | None, typer.Option(help="A point with so many; by default that with most.")
    ] = None,
    point: Annotated[
        int | None, typer.Option(help="Its number in the list that --list shows.")
    ] = None,
    list_points: Annotated[
        bool, typer.Option("--list", help="Show the points of the study, and end.")
    ] = False,
    iterations: Annotated[int, typer.Option(min=1, help="To run for times and results.")] = 3,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, help="That undistributed runs may take, else a part of the image is compared."
        ),
    ] = 60.0,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder where results are to be; default: outputs/ and the file's name."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--json", help="Write what was found to this file.")
    ] = None,
) -> None:
    """Check a point of a study on its real ranks, before it is measured.

    Is the work balanced, does one rank write, do results match the undistributed run; and the
    machine: threads, GPUs, links between ranks, time-outs, files, memory, load. What is not as it
    should be is named, with what to change.

    The exit status is 1 if something failed (warnings are none), 2 if the study can't be used.

    Under torchrun, srun or mpirun it joins their processes; else it starts its own.
    """
    joined = launched_by_other()
    launch = detect_launch(os.environ)
    speaks = not joined or launch.rank == 0
    try:
        study = settings_of(
            Study, read_yaml(config, "the keys name, common, grids, repeats"), config
        )
        points = distinct_points(study)
        wanted = ranks if ranks is not None or not joined or point else launch.world_size
        if list_points:
            _list(points if ranks is None else [p for p in points if p.ranks == ranks])
            return
        chosen = choose_point(points, wanted, point)
        if joined and chosen.ranks != launch.world_size:
            raise UsageError(
                f"the point has {chosen.ranks} ranks, but {launch.launcher} started "
                f"{launch.world_size} processes; start as many, or choose another point"
            )
    except UsageError as error:
        if speaks:
            typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    if speaks:
        show_head(console(), study.name, chosen)
    order = Order(
        point=chosen,
        folder=output or Path("outputs") / config.stem,
        iterations=iterations,
        seconds=seconds,
        load=load_now(),
        report=report,
    )
    if joined:
        raise typer.Exit(run_check(order) == "failed")
    raise typer.Exit(_start(order))


def _start(order: Order) -> int:
    with tempfile.TemporaryDirectory(prefix="shardinv-check-") as folder:
        report = order.report or Path(folder) / "findings.json"
        report.unlink(missing_ok=True)  # of an earlier check
        status = run_workers(
            "check",
            order.model_copy(update={"report": report}),
            order.point.ranks,
            log=order.folder / "check-error.txt",
            lighter="a smaller size or tile",
        )
        if status:
            return status
        found = json.loads(report.read_text(encoding="utf-8"))
        return int(found["status"] == "failed")


def _list(points: list[Point]) -> None:
    for number, point in enumerate(points, start=1):
        typer.echo(f"{number:3}  {describe(point, points)}")
