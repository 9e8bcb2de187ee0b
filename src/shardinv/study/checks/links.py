"""How fast messages are between ranks, measured with the backend in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import torch

from shardinv import DistributedContext
from shardinv.exchange import all_reduce, host_of_ranks, move
from shardinv.geometry import Box, Layout, Plan, plan_transfers
from shardinv.study.checks.telling import tell

LARGE = 8 * 2**20
"""Bytes of a large message."""

_EVERY_PAIR = 16
"""Ranks up to which every pair is measured."""


@dataclass(frozen=True)
class Pair:
    """Messages between two ranks, one way.

    Parameters
    ----------
    ranks
        The two.
    seconds
        Of a message of one number.
    bandwidth
        Bytes a second of a large message.
    """

    ranks: tuple[int, int]
    seconds: float
    bandwidth: float


@dataclass(frozen=True)
class Links:
    """What was measured.

    Parameters
    ----------
    backend
        In use.
    hosts
        Number of the host of each rank.
    pairs
        All pairs, or of many ranks the neighbours and the opposite ones.
    seconds
        Of an all-reduce of one number.
    bandwidth
        Bytes that each rank sends a second in a large all-reduce.
    """

    backend: str
    hosts: tuple[int, ...]
    pairs: list[Pair]
    seconds: float
    bandwidth: float


def pairs_to_measure(size: int) -> list[tuple[int, int]]:
    """Every pair, or of many ranks each rank's neighbour and the one opposite in the ring."""
    if size <= _EVERY_PAIR:
        return list(combinations(range(size), 2))
    near = [(rank, rank + 1) for rank in range(size - 1)]
    return near + [(rank, rank + size // 2) for rank in range(size - size // 2)]


def measure_links(ctx: DistributedContext) -> Links | None:
    """Measure; every rank must call it. None where there is one rank.

    Pairs are measured one after the other, so that they don't share the network.
    """
    if ctx.world_size == 1:
        return None
    with ctx.ledger.block("check"):
        small = torch.zeros(1, device=ctx.device)
        large = torch.zeros(LARGE // 4, device=ctx.device)
        latency = _timed(ctx, lambda: all_reduce(ctx.comm, small), 20)
        each = _timed(ctx, lambda: all_reduce(ctx.comm, large), 3)
        sent = 2 * (ctx.world_size - 1) / ctx.world_size * large.nbytes
        mine = []
        for one, other in pairs_to_measure(ctx.world_size):
            ctx.barrier()
            if ctx.rank in (one, other):
                alone = _ping_pong(ctx, one, other, 1, 20)
                filled = _ping_pong(ctx, one, other, LARGE // 4, 3)
                mine.append(Pair((one, other), alone, LARGE / filled))
        # Both ends have measured; the first one's word is taken.
        told = tell(ctx, (latency, each, [pair for pair in mine if pair.ranks[0] == ctx.rank]))
    return Links(
        str(ctx.backend),
        host_of_ranks(ctx.comm),
        [pair for _, _, pairs in told for pair in pairs],
        max(latency for latency, _, _ in told),
        sent / max(each for _, each, _ in told),
    )


def _ping_pong(ctx: DistributedContext, one: int, other: int, count: int, turns: int) -> float:
    """Seconds one way; the two ranks must call it."""
    box = Box((0,), (count,))
    plan = _plan(ctx.world_size, one, other, box)
    values = torch.zeros(count, device=ctx.device)

    def there_and_back() -> None:
        arrived = move(ctx.comm, [values] if ctx.rank == one else [], plan, (), values.dtype)
        move(ctx.comm, arrived, plan.reversed, (), values.dtype)

    return _timed(ctx, there_and_back, turns) / 2


def _plan(size: int, one: int, other: int, box: Box) -> Plan:
    def of(owner: int) -> Layout:
        return tuple((box,) if rank == owner else () for rank in range(size))

    return plan_transfers(of(one), of(other))


def _timed(ctx: DistributedContext, do: Callable[[], object], turns: int) -> float:
    """Median seconds of a call, after one that doesn't count: it makes connections."""
    do()
    times: Sequence[float] = []
    for _ in range(turns):
        began = _now(ctx)
        do()
        times = [*times, _now(ctx) - began]
    return median(times)


def _now(ctx: DistributedContext) -> float:
    if ctx.device.type == "cuda":
        torch.cuda.synchronize(ctx.device)
    return time.perf_counter()
