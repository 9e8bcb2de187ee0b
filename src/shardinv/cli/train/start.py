"""Reads a configuration file, checks what can be checked, then starts or joins the ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel

from shardinv.cli.configuration import read_yaml, settings_of
from shardinv.cli.errors import UsageError
from shardinv.cli.launch import default_processes, launched_by_other, run_workers
from shardinv.cli.train.run import run_train
from shardinv.cli.train.samples import cut_squares
from shardinv.cli.train.settings import TrainSettings
from shardinv.context.environment import detect_launch
from shardinv.denoise.memory import parse_memory


def train(
    config: Annotated[Path | None, typer.Argument(help="A YAML file; see --example.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of optimizer.epochs.")] = None,
    processes: Annotated[int | None, typer.Option(help="Instead of layout.processes.")] = None,
    output: Annotated[Path | None, typer.Option(help="Instead of output.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run that did not end was saved last.")
    ] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Print a file to start from, and end.")
    ] = False,
) -> None:
    """Train an unrolled solver on photographs, on several processes.

    Operators, tiles of the network and, if asked for, the images are shared out to the processes,
    which work on each batch together. Writes the weights, the learning curve, a validation picture
    and result.json. The state is saved after every epoch.

    Under torchrun, srun or mpirun it joins their processes; else it starts its own.
    """
    if example:
        typer.echo(commented_example(), nl=False)
        return
    joined = launched_by_other()
    try:
        if config is None:
            raise UsageError("a configuration file is needed; --example prints one")
        settings = read_settings(
            config, {"epochs": epochs, "processes": processes, "output": output, "resume": resume}
        )
        check(settings)
    except UsageError as error:
        if not joined or detect_launch(os.environ).rank == 0:
            typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    wanted = settings.layout.processes or default_processes(settings.device)
    if joined or wanted == 1:
        run_train(settings)
        return
    status = run_workers(
        "train",
        settings,
        wanted,
        log=settings.output / "error.txt",
        lighter="memory.checkpoint: both, or a smaller data.side or optimizer.batch",
    )
    if status and settings.checkpoints.is_dir():
        saved = "What was done so far is saved: the same command with --resume goes on"
        print(saved, file=sys.stderr)
    raise typer.Exit(status)


def read_settings(path: Path, instead: dict[str, Any]) -> TrainSettings:
    """The settings of a file, with options of the command line in place of its own.

    Raises
    ------
    UsageError
        In one line, naming each key that was refused.
    """
    given = read_yaml(path, "sections such as model and data; see --example")
    for name, section in (("epochs", "optimizer"), ("processes", "layout")):
        if instead.get(name) is not None:
            given[section] = {**(given.get(section) or {}), name: instead[name]}
    if instead.get("output") is not None:
        given["output"] = instead["output"]
    if instead.get("resume"):
        given["resume"] = True
    return settings_of(TrainSettings, given, path)


def check(settings: TrainSettings) -> None:
    """Find mistakes that need a look at files.

    Raises
    ------
    UsageError
        Saying what is wrong and what to do.
    """
    data = settings.data
    for names in (data.training, data.validation):
        cut_squares(names, data.side, 1, 0)
    try:
        parse_memory(settings.memory.budget)
    except ValueError as error:
        raise UsageError(f"memory.budget: {error}") from None
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output {settings.output} can't be made: {error.strerror}") from None


def commented_example() -> str:
    """A file with every key, its default, and what it means."""
    lines = ["# shardinv train FILE; every key may be left away.\n"]
    for name, field in TrainSettings.model_fields.items():
        default = field.default
        if isinstance(default, BaseModel):
            lines.append(f"\n{name}:  # {(type(default).__doc__ or '').splitlines()[0]}\n")
            values = default.model_dump(mode="json")
            for key, inner in type(default).model_fields.items():
                lines.append(f"  {_entry(key, values[key])}  # {inner.description}\n")
        else:
            lines.append(
                f"\n{_entry(name, TrainSettings.model_validate({}).model_dump(mode='json')[name])}"
            )
            lines.append(f"  # {field.description}\n")
    return "".join(lines)


def _entry(key: str, value: Any) -> str:
    return f"{key}: {yaml.safe_dump(value, default_flow_style=True, width=200).split(chr(10))[0]}"
