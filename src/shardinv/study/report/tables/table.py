"""Tables of the report: columns that know what they hold, so that they sort as such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | float | int | None


@dataclass(frozen=True)
class Column:
    """A column.

    Parameters
    ----------
    title
        With the unit.
    text
        How a value is written; numbers stand at the right.
    """

    title: str
    text: Callable[[Any], str] = str

    def write(self, value: Cell) -> str:
        """The value as text; empty where it isn't known."""
        return "" if value is None else self.text(value)


@dataclass(frozen=True)
class Table:
    """A table.

    Parameters
    ----------
    key, title
        What it is.
    says
        What its columns mean, where that isn't plain.
    columns, rows
        Its values.
    """

    key: str
    title: str
    says: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.key}: {len(self.columns)} columns, but a row is {row}")

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers."""
        values = [row[column] for row in self.rows if row[column] is not None]
        return bool(values) and all(isinstance(value, (int, float)) for value in values)


def filled(
    key: str, title: str, says: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> Table:
    """A table without the columns that hold nothing."""
    kept = [n for n in range(len(columns)) if any(row[n] not in (None, "") for row in rows)]
    return Table(
        key,
        title,
        says,
        tuple(columns[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in rows),
    )
