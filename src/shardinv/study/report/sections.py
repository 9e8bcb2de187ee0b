"""What the report consists of, by what the study varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardinv.study.analysis.summary import Row
from shardinv.study.collection import Collection
from shardinv.study.report.charts import AnyChart, Figure
from shardinv.study.report.curves import TITLES
from shardinv.study.report.figures import (
    communication,
    kernels,
    losses,
    published,
    quality,
    resources,
    scaling,
    settings,
    timeline,
    times,
)
from shardinv.study.report.naming import Naming
from shardinv.study.report.tables import Table, factors, longest_kernels, operations, points


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Parameters
    ----------
    key, title
        What it is.
    figures, tables
        What it shows; a section that shows nothing is left out.
    pictures
        Whether the reconstructions belong to it.
    """

    key: str
    title: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: bool = False


def sections(collection: Collection, naming: Naming, *, with_published: bool) -> list[Section]:
    """All that there is something to show in."""
    rows = collection.rows
    # Published are reconstructions: a training step is something else.
    with_published = with_published and any(row.point.task == "reconstruct" for row in rows)
    several = len({row.point.ranks for row in rows}) > 1
    found = [
        Section("time", "Time of an iteration", _figures([times.stages(rows, naming)])),
        _scaling(collection, naming, with_published) if several else None,
        _losses(rows, naming),
        _communication(rows, naming, several, with_published),
        Section("timeline", "One iteration, rank by rank", _some(timeline.timelines(rows, naming))),
        _kernels(rows, naming),
        _quality(rows, naming, with_published),
        *(
            Section(f"against-{setting}", title, _figures(settings.against(rows, naming, setting)))
            for setting, title in _settings(collection, naming)
        ),
        _resources(collection, naming),
        _published() if with_published else None,
        Section("points", "All points", tables=(points(rows, naming, collection.price),)),
    ]
    return [each for each in found if each and (each.figures or each.tables or each.pictures)]


def charts(found: Sequence[Section]) -> list[AnyChart]:
    """All charts, whether chosen or not."""
    return [chart for section in found for figure in section.figures for _, chart in figure.choices]


def _figures(found: Sequence[AnyChart | None]) -> tuple[Figure, ...]:
    return tuple(Figure.of(chart) for chart in found if chart is not None)


def _some(figure: Figure | None) -> tuple[Figure, ...]:
    return () if figure is None else (figure,)


def _tables(*found: Table | None) -> tuple[Table, ...]:
    return tuple(table for table in found if table is not None)


def _scaling(collection: Collection, naming: Naming, with_published: bool) -> Section:
    rows = collection.rows
    # Where the problem grows, published speedups on one problem are another thing.
    theirs = with_published and not collection.weak
    speedup = scaling.speedup(rows, naming, theirs)
    if collection.weak:
        says = f"{speedup.says} The problem grows with the ranks; times are scaled by its pixels."
        speedup = replace(speedup, title="Scaled speedup", says=says)
    figures = [speedup, scaling.efficiency(rows, naming, theirs)]
    # In training nobody counts what the network processes.
    if any(row.work is not None and row.point.system != "deepinv" for row in rows):
        figures.append(scaling.normalised_efficiency(rows, naming, theirs))
    return Section("scaling", "Speedup and efficiency", _figures(figures))


def _losses(rows: Sequence[Row], naming: Naming) -> Section | None:
    if not any(row.factors for row in rows):
        return None
    figures = _figures([losses.losses(rows, naming)])
    return Section("losses", "What holds it back", figures, _tables(factors(rows, naming)))


def _communication(
    rows: Sequence[Row], naming: Naming, several: bool, with_published: bool
) -> Section:
    figures: list[AnyChart | None] = []
    if several and any(row.point.ranks > 1 for row in communication.noted(rows)):
        figures = [
            communication.compute_and_communication(rows, naming),
            communication.share(rows, naming, with_published),
            communication.sent(rows, naming),
        ]
    return Section(
        "communication", "Communication", _figures(figures), _tables(operations(rows, naming))
    )


def _kernels(rows: Sequence[Row], naming: Naming) -> Section:
    return Section(
        "kernels",
        "Kernels",
        _figures([kernels.kernels(rows, naming)]),
        _tables(longest_kernels(rows, naming)),
    )


def _quality(rows: Sequence[Row], naming: Naming, with_published: bool) -> Section:
    figures = [
        *quality.trajectories(rows, naming),
        *quality.agreements(rows, naming, with_published),
    ]
    return Section("quality", "Quality", _figures(figures), pictures=True)


def _settings(collection: Collection, naming: Naming) -> list[tuple[str, str]]:
    grows = {"size"} if collection.weak else set[str]()
    titles = {"overlap": "Halo", "tile": "Size of tiles", "size": "Size of the problem"}
    return [
        (setting, titles.get(setting, TITLES[setting].capitalize()))
        for setting in settings.SETTINGS
        if setting in naming.varying
        and setting not in grows
        and settings.varies(collection.rows, naming, setting)
    ]


def _resources(collection: Collection, naming: Naming) -> Section:
    rows = collection.rows
    figures = [
        resources.memory(rows, naming),
        resources.worker_seconds(rows, naming),
        resources.energy(rows, naming),
    ]
    if collection.price is not None:
        figures.append(resources.price(rows, naming, collection.price))
    return Section("resources", "Memory and cost", _figures(figures))


def _published() -> Section:
    figures = _figures([published.published_stages(), published.published_talk()])
    return Section("published", "Published measurements", figures)
