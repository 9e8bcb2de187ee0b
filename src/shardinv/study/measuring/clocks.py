"""One clock for all ranks: what to add to each rank's time to get that of rank 0."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from shardinv.exchange import host_identity

_ROUNDS = 20


def clock_offsets(ctx: Any) -> list[float]:
    """Seconds to add to ``time.perf_counter`` of each rank; all ranks must call it.

    Ranks of a host share a clock (Linux): those of rank 0's host have no offset.
    """
    everyone: list[Any] = [None] * ctx.world_size
    ctx.all_gather_object(everyone, host_identity())
    if len(set(everyone)) == 1:
        return [0.0] * ctx.world_size
    mine, told = [], [None] * ctx.world_size
    for _ in range(_ROUNDS):
        entered = time.perf_counter()
        ctx.all_gather_object(told, None)
        mine.append((entered, time.perf_counter()))
    rounds: list[Any] = [None] * ctx.world_size
    ctx.all_gather_object(rounds, mine)
    return offsets(rounds, everyone)


def offsets(
    rounds: Sequence[Sequence[tuple[float, float]]], hosts: Sequence[object]
) -> list[float]:
    r"""Offsets from the times at which ranks entered and left operations that all must enter.

    No rank leaves before the last one has entered. With :math:`o` the offset of a clock to that of
    rank 0, each round tells :math:`e_0 - l \le o \le l_0 - e`; the middle of what all rounds of
    all ranks of a host leave is taken.

    Parameters
    ----------
    rounds
        By rank, then by round: seconds on its own clock at which it entered and left.
    hosts
        Of each rank, anything that tells hosts apart.

    Examples
    --------
    >>> offsets([[(0.0, 3.0), (10.0, 12.0)], [(101.0, 103.0), (111.0, 112.0)]], ["a", "b"])
    [0.0, -100.5]
    """
    found = {hosts[0]: 0.0}
    for host in hosts:
        if host not in found:
            ranks = [rank for rank, own in enumerate(hosts) if own == host]
            pairs = [pair for r in ranks for pair in zip(rounds[0], rounds[r], strict=True)]
            least = max(entered0 - left for (entered0, _), (_, left) in pairs)
            most = min(left0 - entered for (_, left0), (entered, _) in pairs)
            found[host] = (least + most) / 2
    return [found[host] for host in hosts]
