"""Clocks of hosts are brought to one from when ranks entered and left what all must enter."""

from __future__ import annotations

import random

import pytest

from shardinv import DistributedContext
from shardinv.study.measuring.clocks import clock_offsets, offsets
from tests.harness import WorkerPool


def test_offsets_are_found() -> None:
    draw = random.Random(0)
    true = [0.0, 0.0, -4000.0, -4000.0, 123.0]
    rounds: list[list[tuple[float, float]]] = [[] for _ in true]
    now = 0.0
    for _ in range(20):
        entered = [now + draw.expovariate(5e3) for _ in true]
        left = [max(entered) + 5e-5 + draw.expovariate(5e3) for _ in true]
        for rank, offset in enumerate(true):
            rounds[rank].append((entered[rank] - offset, left[rank] - offset))
        now = max(left)
    found = offsets(rounds, ["a", "a", "b", "b", "c"])
    assert found[:2] == [0.0, 0.0]
    assert found[2] == found[3] == pytest.approx(true[2], abs=2e-4)
    assert found[4] == pytest.approx(true[4], abs=2e-4)


def ask(ctx: DistributedContext) -> list[float]:
    return clock_offsets(ctx)


def test_ranks_of_a_host_share_a_clock(pool: WorkerPool) -> None:
    assert pool.run(ask, world_size=3) == [[0.0] * 3] * 3
