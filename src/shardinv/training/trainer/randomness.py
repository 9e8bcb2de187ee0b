"""Rank 0's random numbers on every rank: of torch, NumPy and Python."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shardinv.context import DistributedContext
from shardinv.exchange import broadcast_tensors

_ROOM = 32 * 1024
"""Bytes of a message: the states take about eleven thousand, the number of which varies."""


@contextmanager
def as_rank_zero(ctx: DistributedContext) -> Iterator[None]:
    """Draw inside what rank 0 draws; afterwards the other ranks' generators are as before.

    Rank 0 draws as it would without other ranks. Collective: one small message.
    """
    if ctx.world_size == 1:
        yield
        return
    first = _told(ctx, _states(ctx.device))
    if ctx.is_main:
        yield
        return
    own = _states(ctx.device)
    _restore(first, ctx.device)
    try:
        yield
    finally:
        _restore(own, ctx.device)


def share_generators(ctx: DistributedContext, generators: Sequence[torch.Generator]) -> None:
    """Put generators into the state of rank 0's, in their order. Every rank has as many."""
    if ctx.world_size == 1:
        return
    for generator, state in zip(generators, _told(ctx, [g.get_state() for g in generators])):
        generator.set_state(state)


def _states(device: torch.device) -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def _restore(states: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], device)


def _told(ctx: DistributedContext, value: Any) -> Any:
    """Rank 0's value on every rank, in a message whose length every rank knows."""
    packed = pickle.dumps(value)
    message = torch.zeros(max(1, -(-len(packed) // _ROOM)) * _ROOM, dtype=torch.uint8)
    message[: len(packed)] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    message = message.to(ctx.device)
    with ctx.ledger.block("trainer"):
        broadcast_tensors(ctx.comm, [message])
    return pickle.loads(message.cpu().numpy().tobytes())
