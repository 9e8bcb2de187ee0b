"""Makes the report of a study from its folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardinv.cli.errors import UsageError
from shardinv.cli.study.extra import needing_extra
from shardinv.study.collection import NoResults

Folder = Annotated[Path, typer.Argument(help="Of results, as shardinv study run leaves it.")]
Published = Annotated[
    bool, typer.Option(help="Draw the published measurements of deepinv.distributed beside.")
]


def report(folder: Folder, published: Published = True) -> None:
    """Make a report: a page that opens offline, figures, data, traces of an iteration.

    They are written to the folder report in the folder of results, in place of an earlier report.
    """
    try:
        with needing_extra("a report needs"):
            from shardinv.study.report import write_report
        page = write_report(folder, with_published=published)
    except (UsageError, NoResults, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"wrote {page}, with figures, data and traces beside it")
