"""Makes a report: the page, its figures as files, the data, and traces."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from shardinv.io.atomic import atomic_folder
from shardinv.study.analysis.summary import Row
from shardinv.study.collection import Collection, read_collection
from shardinv.study.report.export import save_data
from shardinv.study.report.naming import Naming, file_name
from shardinv.study.report.page import Page, render
from shardinv.study.report.pictures import gallery
from shardinv.study.report.provenance import provenance
from shardinv.study.report.sections import charts, sections
from shardinv.study.report.static import save_chart
from shardinv.study.report.trace import save_trace
from shardinv.study.report.words import summary


def write_report(folder: Path, *, with_published: bool = True) -> Path:
    """Read a folder of results and write a report into it.

    Parameters
    ----------
    folder
        With ``points/``, as ``shardinv study run`` leaves it. ``study.json`` and ``images/`` are
        used where they are there.
    with_published
        Whether to draw the published measurements beside one's own.

    Returns
    -------
    Path
        ``report/index.html``. Beside it lie ``figures/``, ``data/`` and ``traces/``.

    Raises
    ------
    NoResults
        If there is nothing to report, or a file can't be read.
    """
    collection = read_collection(folder)
    naming = naming_of(collection)
    found = sections(collection, naming, with_published=with_published)
    # Whole or not at all: what an earlier report has and this one hasn't goes, too.
    with atomic_folder(folder / "report") as target:
        for chart in charts(found):
            save_chart(chart, target / "figures")
        data = save_data(collection.rows, target / "data")
        traces = [_trace(row, naming, target / "traces") for row in collection.rows]
        files = [
            ("Data", [f"data/{file.name}" for file in data]),
            ("Traces for Perfetto", [f"traces/{file.name}" for file in traces if file]),
        ]
        page = Page(
            collection.name,
            summary(collection, naming),
            found,
            gallery(collection.rows, naming, folder),
            provenance(collection, datetime.now(UTC).isoformat(timespec="seconds")),
            collection.failed,
            [(title, paths) for title, paths in files if paths],
        )
        (target / "index.html").write_text(render(page), encoding="utf-8")
    return folder / "report" / "index.html"


def _trace(row: Row, naming: Naming, folder: Path) -> Path | None:
    name = naming.name(row.point)
    return save_trace(row.measurements[0], name, folder / f"{file_name(name)}.json")


def naming_of(collection: Collection) -> Naming:
    """Names for its points; where the problem grows with the ranks, its size tells nothing more."""
    hidden = {"size"} if collection.weak else set[str]()
    return Naming([row.point for row in collection.rows], hidden)
