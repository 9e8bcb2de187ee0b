"""The account of one rank's communication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Entry:
    """What one kind of operation, called from one block, has cost this rank.

    ``bytes_sent`` is what the rank sends under the operation's bandwidth-optimal algorithm, for R
    ranks: 2(R-1)/R n for an all-reduce of n bytes, (R-1)/R n for a gather of n bytes in all or a
    reduce-scatter, n at the root of a broadcast, and the bytes of its own messages for a move.
    ``seconds_issued`` is host time until the operation was under way, ``seconds_waited`` host time
    until it was done; a wait for a slower rank is in the second.
    """

    block: str
    operation: str
    calls: int = 0
    bytes_sent: int = 0
    seconds_issued: float = 0.0
    seconds_waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """One operation, while a ledger traces.

    Times are those of ``time.perf_counter``, in seconds, which all processes of a host share on
    Linux. From ``started`` to ``issued`` the host is busy with the operation, then it may compute
    something else, and from ``blocked`` to ``done`` it waits.
    """

    block: str
    operation: str
    bytes_sent: int
    started: float
    issued: float
    blocked: float
    done: float

    @property
    def exposed(self) -> float:
        """Seconds in which the rank could do nothing else."""
        return self.issued - self.started + self.done - self.blocked


class Ledger:
    """Counts the calls, bytes and seconds of every operation that the exchange layer performs.

    Examples
    --------
    >>> ledger = Ledger()
    >>> with ledger.block("denoiser"):
    ...     ledger.book("gather", bytes_sent=96, seconds_issued=0.0, seconds_waited=0.0)
    >>> ledger.bytes_sent, ledger.calls
    (96, 1)
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._blocks: list[str] = []
        self._events: list[Event] | None = None

    @property
    def calls(self) -> int:
        """Operations since the last reset. One that needs no message (one rank) is not counted."""
        return sum(entry.calls for entry in self._entries.values())

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank sent since the last reset."""
        return sum(entry.bytes_sent for entry in self._entries.values())

    def reset(self) -> None:
        """Forget everything booked so far."""
        self._entries.clear()

    def entries(self) -> list[Entry]:
        """One entry for each pair of block and operation, in the order of their first call."""
        return list(self._entries.values())

    def table(self) -> list[dict[str, Any]]:
        """The entries as plain dictionaries, ready for JSON or a data frame."""
        return [asdict(entry) for entry in self._entries.values()]

    @property
    def current_block(self) -> str:
        """Name of the block on whose behalf operations are being booked."""
        return self._blocks[-1] if self._blocks else "script"

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Book what happens inside under the name of a block."""
        self._blocks.append(name)
        try:
            yield
        finally:
            self._blocks.pop()

    @contextmanager
    def tracing(self) -> Iterator[list[Event]]:
        """Note when each operation inside began and ended, besides the account.

        Yields
        ------
        list of Event
            Grows as operations are done.
        """
        before, self._events = self._events, []
        try:
            yield self._events
        finally:
            self._events = before

    def book(
        self,
        operation: str,
        *,
        bytes_sent: int,
        seconds_issued: float,
        seconds_waited: float,
        span: tuple[float, float] | None = None,
    ) -> None:
        """Add one call to the account.

        Parameters
        ----------
        operation
            Its name.
        bytes_sent, seconds_issued, seconds_waited
            See :class:`Entry`.
        span
            When it started and was done.
        """
        if self._events is not None and span is not None:
            started, done = span
            self._events.append(
                Event(
                    self.current_block,
                    operation,
                    int(bytes_sent),
                    started,
                    started + seconds_issued,
                    done - seconds_waited,
                    done,
                )
            )
        key = (self.current_block, operation)
        entry = self._entries.setdefault(key, Entry(*key))
        entry.calls += 1
        entry.bytes_sent += int(bytes_sent)
        entry.seconds_issued += seconds_issued
        entry.seconds_waited += seconds_waited

    def __str__(self) -> str:
        rows = [("block", "operation", "calls", "MB sent", "s issued", "s waited")]
        rows += [
            (
                e.block,
                e.operation,
                str(e.calls),
                f"{e.bytes_sent / 1e6:.3f}",
                f"{e.seconds_issued:.3f}",
                f"{e.seconds_waited:.3f}",
            )
            for e in self._entries.values()
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )
