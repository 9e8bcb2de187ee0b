"""When each rank was in which stage of an iteration, and what it did there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardinv.ledger import Event
from shardinv.study.analysis.communication import Cost, communication, meetings
from shardinv.study.analysis.factors import Iteration


@dataclass(frozen=True)
class Stamps:
    """Times of one iteration on one rank, in seconds of ``time.perf_counter``.

    Parameters
    ----------
    start
        When it began, with its first stage.
    ends
        When each stage was done, and the next began; in their order.

    Examples
    --------
    >>> Stamps(1.0, {"physics": 2.0, "denoiser": 5.0}).stages
    {'physics': (1.0, 2.0), 'denoiser': (2.0, 5.0)}
    """

    start: float
    ends: dict[str, float]

    @property
    def end(self) -> float:
        """When the iteration was done."""
        return list(self.ends.values())[-1]

    @property
    def stages(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each."""
        begins = [self.start, *self.ends.values()]
        return {
            name: (begin, end)
            for begin, (name, end) in zip(begins, self.ends.items(), strict=False)
        }


@dataclass(frozen=True)
class Span:
    """What a rank did for a while.

    Parameters
    ----------
    name
        The stage, or the block and the operation.
    kind
        ``stage``; in operations ``waiting`` for a rank that was not there, ``moving`` bytes, or
        ``hidden`` behind work.
    start, end
        In seconds from the begin of the iteration on the first rank that began it.
    bytes_sent
        Of an operation.
    """

    name: str
    kind: str
    start: float
    end: float
    bytes_sent: int = 0


def iterations(
    stamps: Sequence[Sequence[Stamps]], traces: Sequence[Sequence[Event]]
) -> list[list[Iteration]]:
    """What each rank did in each iteration.

    The seconds of a stage are those of computing in it; ``waiting`` and ``moving`` are those of all
    stages together. They add up to the iteration.

    Parameters
    ----------
    stamps
        By rank, then by iteration.
    traces
        Each rank's operations while it iterated.

    Returns
    -------
    list of list of Iteration
        By iteration, then by rank.

    Raises
    ------
    ValueError
        If ranks have different numbers of iterations, or of operations in a stage.
    """
    found = []
    for row in zip(*stamps, strict=True):
        costs = {
            stage: communication(
                [_within(t, *own.stages[stage]) for own, t in zip(row, traces, strict=True)]
            )
            for stage in row[0].ends
        }
        found.append(
            [
                _iteration(own, {stage: by_rank[rank] for stage, by_rank in costs.items()})
                for rank, own in enumerate(row)
            ]
        )
    return found


def costs(
    stamps: Sequence[Sequence[Stamps]], traces: Sequence[Sequence[Event]]
) -> list[list[Cost]]:
    """What each kind of operation costs each rank, over all iterations."""
    # What is between iterations (scoring) belongs to none.
    inside = [
        [event for own in row for event in _within(trace, own.start, own.end)]
        for row, trace in zip(stamps, traces, strict=True)
    ]
    return communication(inside)


def spans(row: Sequence[Stamps], traces: Sequence[Sequence[Event]]) -> list[list[Span]]:
    """What each rank did in one iteration, to draw it.

    Parameters
    ----------
    row
        The iteration's stamps on each rank.
    traces
        Each rank's operations.
    """
    origin = min(own.start for own in row)
    inside = [_within(trace, own.start, own.end) for own, trace in zip(row, traces, strict=True)]
    found = []
    for own, events, complete in zip(row, inside, meetings(inside), strict=True):
        mine = [Span(name, "stage", *stage) for name, stage in own.stages.items()]
        for event, there in zip(events, complete, strict=True):
            mine += _stretches(event, there)
        found.append(
            [
                replace(s, start=s.start - origin, end=s.end - origin)
                for s in mine
                if s.end > s.start
            ]
        )
    return found


def _stretches(event: Event, complete: float) -> list[Span]:
    name = f"{event.block} {event.operation}"
    found = [Span(name, "hidden", event.issued, event.blocked, event.bytes_sent)]
    for begin, end in ((event.started, event.issued), (event.blocked, event.done)):
        middle = min(max(begin, complete), end)
        found.append(Span(name, "waiting", begin, middle, event.bytes_sent))
        found.append(Span(name, "moving", middle, end, event.bytes_sent))
    return found


def _within(trace: Sequence[Event], start: float, end: float) -> list[Event]:
    return [event for event in trace if start <= event.started < end]


def _iteration(own: Stamps, costs: Mapping[str, Sequence[Cost]]) -> Iteration:
    exposed = {
        stage: sum(cost.waiting + cost.moving for cost in found) for stage, found in costs.items()
    }
    return Iteration(
        stages={name: end - begin - exposed[name] for name, (begin, end) in own.stages.items()},
        waiting=sum(cost.waiting for found in costs.values() for cost in found),
        moving=sum(cost.moving for found in costs.values() for cost in found),
        total=own.end - own.start,
    )
