"""When each rank was in which stage of an iteration, and what it did there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardinv.ledger import Event
from shardinv.study.analysis.communication import Cost, communication
from shardinv.study.analysis.factors import Iteration


@dataclass(frozen=True)
class Stamps:
    """Times of one iteration on one rank, in seconds of ``time.perf_counter``.

    Parameters
    ----------
    start
        When it began, with the physics step.
    physics
        When the physics step was done, and the denoiser began.
    denoiser
        When the denoiser was done.
    end
        When the iteration was.
    """

    start: float
    physics: float
    denoiser: float
    end: float

    @property
    def stages(self) -> tuple[tuple[float, float], ...]:
        """Begin and end of physics, denoiser, and the rest."""
        return (
            (self.start, self.physics),
            (self.physics, self.denoiser),
            (self.denoiser, self.end),
        )


def iterations(
    stamps: Sequence[Sequence[Stamps]], traces: Sequence[Sequence[Event]]
) -> list[list[Iteration]]:
    """What each rank did in each iteration.

    The seconds of a stage are those of computing in it; of ``waiting`` and ``moving`` those of all
    stages together. With the rest, which is the host's, they add up to the iteration.

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
    return [
        [
            _iteration(own, costs)
            for own, costs in zip(row, _costs_of_stages(row, traces), strict=True)
        ]
        for row in zip(*stamps, strict=True)
    ]


def costs(
    stamps: Sequence[Sequence[Stamps]], traces: Sequence[Sequence[Event]]
) -> list[list[Cost]]:
    """What each kind of operation costs each rank, over all iterations."""
    spans = [(own[0].start, own[-1].end) for own in stamps]
    return communication([_within(t, *span) for t, span in zip(traces, spans, strict=True)])


def _costs_of_stages(
    row: Sequence[Stamps], traces: Sequence[Sequence[Event]]
) -> list[list[list[Cost]]]:
    """By rank, then by stage."""
    stages = [
        communication(
            [_within(trace, *own.stages[stage]) for own, trace in zip(row, traces, strict=True)]
        )
        for stage in range(3)
    ]
    return [[stage[rank] for stage in stages] for rank in range(len(row))]


def _within(trace: Sequence[Event], start: float, end: float) -> list[Event]:
    return [event for event in trace if start <= event.started < end]


def _iteration(own: Stamps, stages: Sequence[Sequence[Cost]]) -> Iteration:
    waiting = [sum(cost.waiting for cost in stage) for stage in stages]
    moving = [sum(cost.moving for cost in stage) for stage in stages]
    busy = [
        end - start - waiting[stage] - moving[stage]
        for stage, (start, end) in enumerate(own.stages)
    ]
    return Iteration(
        physics=busy[0],
        denoiser=busy[1],
        waiting=sum(waiting),
        moving=sum(moving),
        total=own.end - own.start,
    )
