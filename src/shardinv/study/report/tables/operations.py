"""Tables of what runs inside an iteration: operations between ranks, and kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shardinv.study.analysis.communication import Cost
from shardinv.study.analysis.summary import Row
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import number
from shardinv.study.report.tables.table import Cell, Column, Table

# Of each point; those after them are a small part of its time.
_KERNELS = 6


def operations(rows: Sequence[Row], naming: Naming) -> Table | None:
    """Each kind of operation of each block, for a rank and an iteration; None without any."""
    lines = [line for row in rows for line in _operations(row, naming)]
    if not lines:
        return None
    return Table(
        "operations",
        "Operations between ranks",
        "Of one rank in one iteration, the mean over ranks, iterations and repeats. Waiting is for "
        "a rank that was not there yet, moving is of bytes; hidden is under way behind "
        "computation. Bandwidth is bytes sent over seconds moving.",
        (
            Column("point"),
            Column("ranks"),
            Column("block"),
            Column("operation"),
            Column("calls", number),
            Column("kB sent", number),
            Column("waiting in ms", number),
            Column("moving in ms", number),
            Column("hidden in ms", number),
            Column("MB/s", number),
        ),
        tuple(tuple(line) for line in lines),
    )


def _operations(row: Row, naming: Naming) -> list[list[Cell]]:
    together: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    ranks = 0
    for measurement in row.measurements:
        for rank in measurement.costs:
            ranks += 1
            for cost in rank:
                together[cost.block, cost.operation].append(cost)
    found: list[list[Cell]] = []
    for (block, operation), costs in together.items():
        total = sum(costs[1:], costs[0])
        # Every rank of every repetition, each with all its iterations.
        each = 1 / (ranks * len(row.measurements[0].iterations))
        bandwidth = total.bandwidth
        found.append(
            [
                naming.series(row.point),
                row.point.ranks,
                block,
                operation,
                each * total.calls,
                each * total.bytes_sent / 1e3,
                1e3 * each * total.waiting,
                1e3 * each * total.moving,
                1e3 * each * total.hidden,
                None if bandwidth is None else bandwidth / 1e6,
            ]
        )
    return found


def longest_kernels(rows: Sequence[Row], naming: Naming) -> Table | None:
    """The kernels that take most of the first rank; None where no profile was taken."""
    lines = [
        (naming.series(row.point), row.point.ranks, name, calls, 1e3 * seconds)
        for row in rows
        for rank in row.measurements[0].kernels[:1]
        for name, calls, seconds in rank.longest[:_KERNELS]
    ]
    if not lines:
        return None
    return Table(
        "kernels",
        "Longest kernels",
        "Of the first rank, in one iteration under PyTorch's profiler.",
        (
            Column("point"),
            Column("ranks"),
            Column("kernel"),
            Column("calls"),
            Column("ms", number),
        ),
        tuple(lines),
    )
