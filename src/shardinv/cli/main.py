"""The ``shardinv`` command and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from shardinv import __version__
from shardinv.cli.check import check
from shardinv.cli.demo import DemoSettings, start_demo
from shardinv.cli.options import command
from shardinv.cli.study import study
from shardinv.cli.train import train

app = typer.Typer(
    name="shardinv",
    help="Imaging inverse problems too large, or too slow, for one device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardinv {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Imaging inverse problems too large, or too slow, for one device."""


app.command("train")(train)
app.command("check")(check)
app.add_typer(study, name="study")
app.command("demo")(command(DemoSettings, start_demo))
