"""Where efficiency goes: factors that multiply to it, each with what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod


@dataclass(frozen=True)
class Work:
    """What the network computes, in pixels.

    Parameters
    ----------
    image
        Of the image.
    with_halo
        Cores and their halos, where tiles lie as equal as the image's size allows.
    with_quantisation
        The windows that were really cut: a tile of fixed size may reach past what is needed.
    with_padding
        The same, padded by the network to a multiple of its stride.
    by_rank
        Of ``with_padding``, what each rank computes.
    physics_by_rank
        Each rank's share of the physics; empty where it isn't known.
    """

    image: int
    with_halo: int
    with_quantisation: int
    with_padding: int
    by_rank: tuple[int, ...]
    physics_by_rank: tuple[float, ...] = ()


@dataclass(frozen=True)
class Iteration:
    """Seconds of an iteration of one rank, by what the rank was doing.

    Parameters
    ----------
    stages
        Computing in each stage: physics, denoiser and rest of a reconstruction; forward, backward
        and update of a training step.
    waiting, moving
        Exposed communication of all stages: for a slower rank, and of bytes.
    total
        From the iteration's begin to its end: everything above.
    """

    stages: dict[str, float]
    waiting: float
    moving: float
    total: float

    def scaled(self, by: float) -> Iteration:
        """The same with all seconds multiplied."""
        stages = {name: by * seconds for name, seconds in self.stages.items()}
        return Iteration(stages, by * self.waiting, by * self.moving, by * self.total)

    @property
    def physics(self) -> float:
        """Computing in the physics step."""
        return self.stages["physics"]

    @property
    def denoiser(self) -> float:
        """Computing in the denoiser."""
        return self.stages["denoiser"]


@dataclass(frozen=True)
class Factor:
    """A part of the efficiency.

    Parameters
    ----------
    name
        What takes it away.
    value
        At most about 1; 1 takes nothing away.
    advice
        What to change.
    """

    name: str
    value: float
    advice: str


_ADVICE = {
    "halo work": "use larger tiles or a smaller halo",
    "tile quantisation": "use a tile size that divides the image, and cut tiles at its borders",
    "network padding": "make tiles and halos multiples of the network's stride",
    "uneven ranks": "use more tiles than ranks, or a number of tiles and operators that ranks "
    "divide",
    "slow rank": "give every rank the same hardware, with nothing else running beside it",
    "communication": "use a sharded layout, fewer and larger messages, or a faster network",
    "host": "use larger batches of tiles, or compile the network",
    "rest": "stop other programs on the machine; ranks may share its memory's bandwidth",
}


def factors(
    baseline: Iteration,
    work: Work,
    ranks: Sequence[Iteration],
    *,
    baseline_ranks: int = 1,
    larger: float = 1.0,
    messages_noted: bool = True,
) -> list[Factor]:
    r"""Split the parallel efficiency of an iteration into factors.

    Costs are added one after the other to the ideal time :math:`T_0 N_0/N`: the halo's share of the
    network's work, that of quantisation and of padding, the busiest rank's work beyond the mean,
    the slowest one's time beyond that at the fastest one's speed, exposed communication, the host's
    time.
    Each factor is the time before over the time after. What is left to the measured time is the
    last one, so that they multiply to the efficiency exactly.

    Parameters
    ----------
    baseline
        An iteration of the undistributed program, on the whole image.
    work
        Of the network.
    ranks
        The measured iteration of each rank.
    baseline_ranks
        Workers of the baseline.
    larger
        Pixels of the image over those of the baseline's, by which its times are multiplied.
    messages_noted
        Whether communication was told apart; if not, it is in the rest.

    Raises
    ------
    ValueError
        If there is no rank, or their number isn't that of ``work``.
    """
    count = len(ranks)
    if not count or len(work.by_rank) != count:
        raise ValueError(f"{count} ranks were measured, but the work is that of {work.by_rank}")
    scale = larger * baseline_ranks / count
    ideal = baseline.total * scale
    denoiser = baseline.denoiser * scale
    others = ideal - denoiser

    def tiled(pixels: int) -> float:
        return others + denoiser * pixels / work.image

    # What each rank would compute, if all ranks computed at one speed.
    mean_physics = sum(rank.physics for rank in ranks) / count
    shares = work.physics_by_rank or (1 / count,) * count
    even = tiled(work.with_padding) - others + mean_physics
    expected = [
        denoiser * count * pixels / work.image + mean_physics * count * share
        for pixels, share in zip(work.by_rank, shares, strict=True)
    ]
    uneven = max(0.0, max(expected) - even)
    # And what it computed: the slowest one's seconds beyond those at the speed of the fastest.
    computed = [rank.physics + rank.denoiser for rank in ranks]
    fastest = min(own / share for own, share in zip(computed, expected, strict=True) if share > 0)
    slow = max(0.0, max(computed) - fastest * max(expected))
    slowest = max(ranks, key=lambda rank: rank.total)
    # The slowest rank's wait is for a rank that was slower before: communication all the same.
    moved = min(rank.waiting + rank.moving for rank in ranks)
    host = slowest.total - slowest.physics - slowest.denoiser - slowest.waiting - slowest.moving
    steps = [
        tiled(work.with_halo) - ideal,
        tiled(work.with_quantisation) - tiled(work.with_halo),
        tiled(work.with_padding) - tiled(work.with_quantisation),
        uneven,
        slow,
        moved,
        max(0.0, host),
    ]
    times = [*accumulate(steps, initial=ideal), slowest.total]
    found = [
        Factor(name, before / after, advice)
        for (name, advice), before, after in zip(_ADVICE.items(), times, times[1:], strict=False)
    ]
    if messages_noted:
        return found
    left = prod(factor.value for factor in found[-3:])
    return [
        *found[:-3],
        Factor("communication and rest", left, "measure with shardinv, which tells them apart"),
    ]


def limit(found: Sequence[Factor]) -> str:
    """One sentence: what holds a run back most, and what to change."""
    worst = min(found, key=lambda factor: factor.value)
    if worst.value > 0.97:
        return "Nothing takes more than 3 % away."
    return f"{worst.name} takes {1 - worst.value:.0%} away: {worst.advice}."
