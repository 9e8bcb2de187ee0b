"""The draws of a loss: rank 0's on every rank, the undistributed sequence.

Transforms, masks and perturbations are drawn from generators of the loss's own or from torch's
default one. Every rank must draw the same, or each would work on a loss of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from shardinv.blocks import TiedToRanks
from shardinv.context import DistributedContext
from shardinv.exchange import DisagreementError, publish


class DrawsAsRankZero(TiedToRanks):
    """What draws inside :func:`common_random`: a loss, or a model that a loss has adapted."""

    ctx: DistributedContext


def generators_of(*sources: Any) -> list[torch.Generator]:
    """The random generators that objects hold, in modules, lists and mappings, each once.

    Those of distributed blocks are left out: blocks see to their own draws.
    """
    found: list[torch.Generator] = []
    seen: set[int] = set()

    def visit(value: Any) -> None:
        if id(value) in seen:
            return
        if isinstance(value, torch.Generator):
            found.append(value)
        elif isinstance(value, TiedToRanks) and not isinstance(value, DrawsAsRankZero):
            return
        elif isinstance(value, nn.Module):
            seen.add(id(value))
            for name, part in value.__dict__.items():
                # Tables of tensors and hooks; submodules are in one of torch's tables as well.
                if name == "_modules" or not name.startswith("_"):
                    visit(part)
            return
        elif isinstance(value, Mapping):
            for part in list(value.values()):
                visit(part)
        elif type(value) in (list, tuple):
            for part in value:
                visit(part)
        seen.add(id(value))

    for source in sources:
        visit(source)
    return found


@contextmanager
def common_random(ctx: DistributedContext, *sources: Any) -> Iterator[None]:
    """Draw on every rank what rank 0 draws, from the default generator and from those of objects.

    Inside, the sequences are those of an undistributed program on rank 0. Afterwards a rank whose
    default generator was as rank 0's stays alike, and another's has advanced by a number. The
    generators of objects stay as rank 0's.

    Parameters
    ----------
    ctx
        The ranks. Every rank must come here: the states travel through the store.
    *sources
        Objects whose generators are used inside; the same on every rank.

    Raises
    ------
    DisagreementError
        If ranks hold different numbers of generators.
    """
    if ctx.world_size == 1:
        yield
        return
    cuda = [ctx.device] if ctx.device.type == "cuda" else []
    own = generators_of(*sources)
    defaults = _default_states(cuda)
    states = defaults + [generator.get_state() for generator in own]
    digests = [zlib.crc32(state.numpy().tobytes()) for state in states]
    told = publish(
        ctx.comm, "the random generators of a loss", (digests, states if ctx.is_main else None)
    )
    if any(len(theirs) != len(digests) for theirs, _ in told):
        raise DisagreementError(
            "the random generators of a loss are not the same ones on every rank: "
            f"{[len(theirs) - len(defaults) for theirs, _ in told]} of its own. Build the loss, "
            "its transforms and its masks alike on every rank"
        )
    wanted, first = told[0]
    for number, generator in enumerate(own, start=len(defaults)):
        if digests[number] != wanted[number]:
            generator.set_state(first[number])
    if digests[: len(defaults)] == wanted[: len(defaults)]:
        yield
        return
    with torch.random.fork_rng(devices=cuda):
        torch.set_rng_state(first[0])
        for device, state in zip(cuda, first[1:], strict=False):
            torch.cuda.set_rng_state(state, device)
        yield
    torch.randint(2**62, (1,))


def next_number(generator: torch.Generator | None) -> int:
    """A number from a generator, by default torch's own; inside :func:`common_random`."""
    device = generator.device if generator is not None else "cpu"
    return int(torch.randint(2**62, (1,), generator=generator, device=device).item())


def _default_states(cuda: list[torch.device]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in cuda)]
