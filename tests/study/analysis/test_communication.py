"""Waiting apart from moving, by hand and with a planted slow rank."""

from __future__ import annotations

import time

import pytest
import torch

from shardinv import DistributedContext
from shardinv.ledger import Event
from shardinv.study.analysis.communication import communication
from tests.harness import WorkerPool


def event(started: float, done: float, busy: float | None = None, waited: float = 0.0) -> Event:
    issued = done if busy is None else started + busy
    return Event("physics", "move", 100, started, issued, done - waited, done)


def test_blocking() -> None:
    early, late = communication([[event(0.0, 6.0)], [event(4.0, 6.5)]])
    assert (early[0].waiting, early[0].moving) == (4.0, 2.0)
    assert (late[0].waiting, late[0].moving) == (0.0, 2.5)
    assert early[0].bandwidth == 50
    assert early[0].hidden == 0


def test_beside_work() -> None:
    """A second to issue, then something else until 7, then three seconds of waiting."""
    (found,), _ = communication([[event(0.0, 10.0, busy=1.0, waited=3.0)], [event(8.5, 10.0)]])
    assert (found.waiting, found.moving, found.hidden) == (2.5, 1.5, 6.0)
    (found,), _ = communication([[event(0.0, 10.0, busy=1.0, waited=3.0)], [event(2.0, 10.0)]])
    assert (found.waiting, found.moving, found.hidden) == (1.0, 3.0, 6.0)


def test_kinds_and_sums() -> None:
    other = Event("denoiser", "gather", 7, 20.0, 20.0, 20.0, 21.0)
    trace = [event(0.0, 1.0), other, event(3.0, 5.0)]
    (physics, denoiser), _ = communication([trace, trace])
    assert (physics.calls, physics.bytes_sent, physics.moving) == (2, 200, 3.0)
    assert (denoiser.block, denoiser.operation, denoiser.calls) == ("denoiser", "gather", 1)


def test_ranks_out_of_step() -> None:
    with pytest.raises(ValueError, match="rank 1 has other operations than rank 0"):
        communication([[event(0.0, 1.0)], []])


def slow(ctx: DistributedContext, seconds: float) -> list[Event]:
    x = torch.ones(1000)
    ctx.all_reduce(x)
    with ctx.ledger.tracing() as events:
        for _ in range(3):
            if ctx.rank == 1:
                time.sleep(seconds)
            ctx.all_reduce(x)
    ctx.all_reduce(x)
    return events


def test_planted_slow_rank(pool: WorkerPool) -> None:
    traces = pool.run(slow, 0.1, world_size=3)
    assert [len(trace) for trace in traces] == [3, 3, 3]
    costs = communication(traces)
    for rank, (cost,) in enumerate(costs):
        assert cost.calls == 3
        assert cost.operation == "all_reduce"
        if rank == 1:
            assert cost.waiting < 0.05
        else:
            assert 0.25 < cost.waiting < 0.5
        assert cost.moving < 0.25
