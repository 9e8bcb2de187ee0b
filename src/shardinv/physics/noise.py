"""Random numbers that do not depend on how many ranks draw them.

Each operator draws from a stream of its own, whose seed follows from one number that all ranks know
and the operator's index. An operator whose noise model has a generator that no other operator uses
keeps it: its draws are the undistributed stack's.

Operators that a factory makes are on their owners alone, where a generator that two of them share
can't be seen. It would have one seed, so those are an operator's own whose seed no other one has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from deepinv.physics import Physics
from deepinv.physics.noise import ZeroNoise

from shardinv.context import DistributedContext
from shardinv.exchange import publish
from shardinv.tensor import CounterRandom


class Generators:
    """Tells which operators have a random generator that no other operator draws from.

    Parameters
    ----------
    generators
        The generator of each operator's noise model, of all operators on every rank, or what stands
        for it: the seed that it began with. None where it has none.
    """

    def __init__(self, generators: Sequence[torch.Generator | int | None]) -> None:
        # Kept, not only compared: a generator that is gone may leave its place to another.
        self._generators = list(generators)

    def alone(self, index: int) -> bool:
        """Whether an operator has a generator of its own."""
        mine = self._generators[index]
        return mine is not None and sum(other == mine for other in self._generators) == 1

    @classmethod
    def seeded(cls, seeds: Mapping[int, int], count: int) -> Generators:
        """Of a factory's operators, by the seeds of those that have a generator."""
        return cls([seeds.get(index) for index in range(count)])

    def replace(self, index: int, generator: torch.Generator | None) -> None:
        """Take note of an operator's new noise model."""
        self._generators[index] = generator

    def __deepcopy__(self, memo: dict[int, object]) -> Generators:
        return Generators(self._generators)


def common_seed(ctx: DistributedContext, needed: bool = True) -> int:
    """A fresh number from rank 0's default generator, the same on every rank.

    Every rank's generator advances, so ranks that were alike stay alike.

    Parameters
    ----------
    ctx
        The ranks.
    needed
        Whether this rank will draw. Where none will, no generator advances: what the program draws
        next is what it would draw undistributed.
    """
    before = torch.get_rng_state()
    mine = int(torch.randint(2**62, (1,)).item())
    told = publish(ctx.comm, "a seed", (mine, needed))
    if not any(draws for _, draws in told):
        torch.set_rng_state(before)
    return told[0][0]


def seeds_of(operators: Iterable[tuple[int, Physics]]) -> dict[int, int]:
    """The seed that each operator's generator began with, where its noise model has one."""
    found = {index: getattr(op.noise_model, "rng", None) for index, op in operators}
    return {index: rng.initial_seed() for index, rng in found.items() if rng is not None}


def is_noisy(physics: Physics) -> bool:
    """Whether an operator's noise model may draw random numbers."""
    return not isinstance(physics.noise_model, (ZeroNoise, type(None)))


def stream_seed(base: int, index: int) -> int:
    """The seed of one operator's stream: far from its neighbours', whatever the base.

    Notes
    -----
    The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014).
    """
    z = (base + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return (z ^ (z >> 31)) % 2**63


@contextmanager
def stream(seed: int, device: torch.device, rng: torch.Generator | None = None) -> Iterator[None]:
    """Draw from a stream inside; the default generators, and ``rng``, are as before afterwards.

    What is drawn depends on the position in the whole, so it is the same for a plain tensor and for
    a sharded one.
    """
    devices = [device] if device.type == "cuda" else []
    saved = rng.get_state() if rng is not None else None
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        if rng is not None:
            rng.manual_seed(seed)
        try:
            with CounterRandom(seed):
                yield
        finally:
            if rng is not None and saved is not None:
                rng.set_state(saved)


@contextmanager
def rank_zero_random(ctx: DistributedContext, like: torch.Tensor) -> Iterator[None]:
    """Draw on every rank what rank 0 draws: for an algorithm that starts from a random image.

    Afterwards rank 0's default generator is where it would be without other ranks; each other
    rank's has advanced by one image.
    """
    if ctx.world_size == 1:
        yield
        return
    cuda = ctx.device.type == "cuda"
    state = torch.cuda.get_rng_state(ctx.device) if cuda else torch.get_rng_state()
    first = publish(ctx.comm, "the state of rank 0's generator", state if ctx.is_main else None)[0]
    if ctx.is_main:
        yield
        return
    torch.randn_like(like)
    with torch.random.fork_rng(devices=[ctx.device] if cuda else []):
        torch.cuda.set_rng_state(first, ctx.device) if cuda else torch.set_rng_state(first)
        yield
