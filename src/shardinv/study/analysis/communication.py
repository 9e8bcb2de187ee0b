"""What communication costs: waiting for a slower rank apart from moving bytes.

Every rank notes when it enters an operation and when it is done (``Ledger.tracing``). An operation
can't move before its last rank is there: until then the others wait, whatever the network does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardinv.ledger import Event


@dataclass(frozen=True)
class Cost:
    """One kind of operation of one block, on one rank.

    Parameters
    ----------
    block, operation
        As in the ledger.
    calls, bytes_sent
        How many, and bytes that this rank sent.
    waiting
        Seconds in which it could do nothing else because another rank was not there yet.
    moving
        Seconds in which it could do nothing else although all ranks were there.
    hidden
        Seconds from the start of operations to their ends in which it computed something else.
    """

    block: str
    operation: str
    calls: int
    bytes_sent: int
    waiting: float
    moving: float
    hidden: float

    @property
    def bandwidth(self) -> float | None:
        """Bytes sent a second of moving; None where nothing moved."""
        return self.bytes_sent / self.moving if self.bytes_sent and self.moving > 0 else None

    def __add__(self, other: Cost) -> Cost:
        return replace(
            self,
            calls=self.calls + other.calls,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            waiting=self.waiting + other.waiting,
            moving=self.moving + other.moving,
            hidden=self.hidden + other.hidden,
        )


def communication(traces: Sequence[Sequence[Event]]) -> list[list[Cost]]:
    """The cost of each kind of operation, for each rank.

    Parameters
    ----------
    traces
        Each rank's events, with one clock: of one host, or with the clocks' offsets taken out.
        Operations are collective, so the n-th of a kind on one rank is the n-th on all.

    Returns
    -------
    list of list of Cost
        By rank; kinds in the order of their first call.

    Raises
    ------
    ValueError
        If ranks have different numbers of operations of a kind.

    Examples
    --------
    >>> early = Event("physics", "all_reduce", 8, started=0.0, issued=0.0, blocked=0.0, done=5.0)
    >>> late = Event("physics", "all_reduce", 8, started=3.0, issued=3.0, blocked=3.0, done=5.0)
    >>> [(cost.waiting, cost.moving) for (cost,) in communication([[early], [late]])]
    [(3.0, 2.0), (0.0, 2.0)]
    """
    costs: list[dict[tuple[str, str], Cost]] = []
    for trace, complete in zip(traces, meetings(traces), strict=True):
        own: dict[tuple[str, str], Cost] = {}
        for event, there in zip(trace, complete, strict=True):
            cost = _cost(event, there)
            kind = event.block, event.operation
            own[kind] = own[kind] + cost if kind in own else cost
        costs.append(own)
    return [[own[kind] for kind in costs[0]] for own in costs]


def meetings(traces: Sequence[Sequence[Event]]) -> list[list[float]]:
    """When the last rank entered each operation, for each rank's events in their order.

    Raises
    ------
    ValueError
        If ranks have different numbers of operations of a kind.
    """
    kinds = [_by_kind(trace) for trace in traces]
    for rank, own in enumerate(kinds):
        counts = {kind: len(events) for kind, events in own.items()}
        first = {kind: len(events) for kind, events in kinds[0].items()}
        if counts != first:
            raise ValueError(
                f"rank {rank} has other operations than rank 0: {counts} instead of {first}"
            )
    complete = [[0.0] * len(trace) for trace in traces]
    for kind in kinds[0] if kinds else ():
        for meeting in zip(*(own[kind] for own in kinds), strict=True):
            last = max(trace[number].started for trace, number in zip(traces, meeting, strict=True))
            for rank, number in enumerate(meeting):
                complete[rank][number] = last
    return complete


def _by_kind(trace: Sequence[Event]) -> dict[tuple[str, str], list[int]]:
    """Numbers of the events of each kind, by the time of their start."""
    kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in sorted(range(len(trace)), key=lambda number: trace[number].started):
        kinds[trace[number].block, trace[number].operation].append(number)
    return kinds


def _cost(event: Event, complete: float) -> Cost:
    # The host is in the operation in two stretches; the part of each before all are there is wait.
    stretches = ((event.started, event.issued), (event.blocked, event.done))
    waiting = sum(max(0.0, min(end, complete) - begin) for begin, end in stretches)
    return Cost(
        event.block,
        event.operation,
        1,
        event.bytes_sent,
        waiting,
        event.exposed - waiting,
        event.blocked - event.issued,
    )
