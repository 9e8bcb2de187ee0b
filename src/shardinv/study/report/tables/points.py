"""Tables with a line for each point: what it gave, and the factors of its efficiency."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.analysis.summary import Row
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import number
from shardinv.study.report.tables.table import Cell, Column, Table, filled


def points(rows: Sequence[Row], naming: Naming, price: float | None) -> Table:
    """Times, scaling, work, communication, quality and cost."""
    columns = [
        Column("point"),
        Column("ranks"),
        Column("repeats"),
        Column("s per iteration", number),
        Column("from", number),
        Column("to", number),
        Column("speedup", lambda value: f"{value:.2f}"),
        Column("efficiency in %", lambda value: f"{value:.1f}"),
        Column("at equal work in %", lambda value: f"{value:.1f}"),
        Column("work", lambda value: f"{value:.3f}"),
        Column("MB sent", number),
        Column("PSNR in dB", lambda value: f"{value:.2f}"),
        Column("SSIM", lambda value: f"{value:.4f}"),
        Column("memory in MiB", lambda value: f"{value:.1f}"),
        Column("worker-seconds", number),
        Column("J", number),
        Column("price", number),
        Column("what holds it back"),
    ]
    says = (
        "Medians over iterations and repeats without warm-up, of the slowest rank; from and to is "
        "the interval of 95 %. Bytes are those of a rank in an iteration, work what the network "
        "processes over the image."
    )
    return filled(
        "points",
        "Times, scaling, quality, cost",
        says,
        columns,
        [_point(r, naming, price) for r in rows],
    )


def _point(row: Row, naming: Naming, price: float | None) -> list[Cell]:
    scaling, first = row.scaling, row.measurements[0]
    equal = None if scaling is None or row.work is None else scaling.work_normalised_efficiency
    return [
        naming.series(row.point),
        row.point.ranks,
        len(row.measurements),
        *row.seconds,
        None if scaling is None else scaling.speedup,
        None if scaling is None else 100 * scaling.efficiency,
        None if equal is None else 100 * equal,
        row.work,
        None if row.bytes_sent is None else row.bytes_sent / 1e6,
        row.psnr_db,
        first.ssim[-1] if first.ssim else None,
        None if row.peak_bytes is None else row.peak_bytes / 2**20,
        row.worker_seconds,
        None if row.joules is None else row.joules * row.point.iterations,
        None if price is None else row.price(price),
        row.limit,
    ]


def factors(rows: Sequence[Row], naming: Naming) -> Table | None:
    """What efficiency is the product of; None where no point has factors."""
    known = [row for row in rows if row.factors and row.scaling is not None]
    if not known:
        return None
    # Of the peer fewer are told apart than of shardinv.
    names = list(dict.fromkeys(factor.name for row in known for factor in row.factors))

    def text(value: float) -> str:
        return f"{value:.3f}"

    return Table(
        "factors",
        "Factors of the efficiency",
        "They multiply to the efficiency; 1 takes nothing away.",
        (
            Column("point"),
            Column("ranks"),
            Column("efficiency", text),
            *(Column(name, text) for name in names),
        ),
        tuple(
            (
                naming.series(row.point),
                row.point.ranks,
                row.scaling.efficiency if row.scaling else None,
                *({factor.name: factor.value for factor in row.factors}.get(n) for n in names),
            )
            for row in known
        ),
    )
