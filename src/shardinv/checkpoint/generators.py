"""The state of torch's random generators, of every rank."""

from __future__ import annotations

import torch

from shardinv.checkpoint.parts import Part
from shardinv.exchange import Communicator

NAMES = ("random.cpu", "random.device")


def generator_parts(comm: Communicator) -> list[Part]:
    """This rank's states, each a row of a tensor with a row for every rank."""
    states = [torch.get_rng_state()]
    if comm.device.type == "cuda":
        states.append(torch.cuda.get_rng_state(comm.device))
    return [
        Part(name, (comm.size, state.numel()), (comm.rank, 0), state[None])
        for name, state in zip(NAMES, states, strict=False)
    ]


def generator_targets(comm: Communicator, shapes: dict[str, list[int]]) -> list[Part]:
    """Room for the rows that this rank reads: none where it has no counterpart."""
    parts = []
    for mine in generator_parts(comm):
        ranks, length = shapes.get(mine.name, (0, 0))
        if comm.rank < ranks and length == mine.shape[1]:
            parts.append(
                Part(mine.name, (ranks, length), mine.offset, torch.empty_like(mine.values))
            )
    return parts


def restore_generators(comm: Communicator, parts: list[Part]) -> None:
    """Set the generators to what was read."""
    for part in parts:
        if part.name == NAMES[0]:
            torch.set_rng_state(part.values[0])
        else:
            torch.cuda.set_rng_state(part.values[0], comm.device)
