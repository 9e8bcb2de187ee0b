"""Makes the report of a study from its folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(help="Of results, as shardinv study run leaves it.")]
Published = Annotated[
    bool, typer.Option(help="Draw the published measurements of deepinv.distributed beside.")
]


def report(folder: Folder, published: Published = True) -> None:
    """Make a report: a page that opens offline, figures, data, traces of an iteration.

    They are written to the folder report in the folder of results, in place of an earlier report.
    """
    try:
        from shardinv.study.report import NoResults, write_report
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("shardinv"):
            raise
        message = f"a report needs the package {error.name}: pip install 'shardinv[study]'"
        typer.echo(f"Error: {message}", err=True)
        raise typer.Exit(2) from None
    try:
        page = write_report(folder, with_published=published)
    except (NoResults, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"wrote {page}, with figures, data and traces beside it")
