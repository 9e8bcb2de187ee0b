"""Where efficiency goes: factors that multiply to it, each with what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    """

    image: int
    with_halo: int
    with_quantisation: int
    with_padding: int
    by_rank: tuple[int, ...]


@dataclass(frozen=True)
class Iteration:
    """Seconds of an iteration of one rank, by what the rank was doing.

    Parameters
    ----------
    physics, denoiser
        Computing in each block.
    waiting, moving
        Exposed communication of all blocks: for a slower rank, and of bytes.
    total
        From the iteration's begin to its end; the rest is the host's.
    """

    physics: float
    denoiser: float
    waiting: float
    moving: float
    total: float


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
    "halo work": "larger tiles or a smaller halo",
    "tile quantisation": "tiles whose size divides the image",
    "network padding": "tiles and halos that are multiples of the network's stride",
    "uneven ranks": "more tiles than ranks, or a number of tiles and operators that ranks divide",
    "communication": "a sharded layout, fewer and larger messages, or a faster network",
    "host": "larger batches of tiles; a compiled network",
    "rest": "other programs on the machine; memory bandwidth that ranks share",
}


def factors(
    baseline: Iteration, work: Work, ranks: Sequence[Iteration], *, baseline_ranks: int = 1
) -> list[Factor]:
    r"""Split the parallel efficiency of an iteration into factors.

    Costs are added one after the other to the ideal time :math:`T_0 N_0/N`: the halo's share of the
    network's work, that of quantisation and of padding, the busiest rank's excess over the mean,
    exposed communication, the host's time. Each factor is the time before over the time after. What
    is left to the measured time is the last one, so that they multiply to the efficiency exactly.

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

    Raises
    ------
    ValueError
        If there is no rank, or their number isn't that of ``work``.
    """
    count = len(ranks)
    if not count or len(work.by_rank) != count:
        raise ValueError(f"{count} ranks were measured, but the work is that of {work.by_rank}")
    scale = baseline_ranks / count
    ideal = baseline.total * scale
    denoiser = baseline.denoiser * scale
    others = ideal - denoiser

    def tiled(pixels: int) -> float:
        return others + denoiser * pixels / work.image

    slowest = max(ranks, key=lambda rank: rank.total)
    # Ranks compute at one speed if the network's seconds are as its pixels; physics as measured.
    mean_work = work.with_padding / count
    uneven = denoiser * (max(work.by_rank) - mean_work) * count / work.image
    mean_physics = sum(rank.physics for rank in ranks) / count
    uneven += max(rank.physics for rank in ranks) - mean_physics
    # The slowest rank's wait is for a rank that was slower before: communication all the same.
    moved = min(rank.waiting + rank.moving for rank in ranks)
    busy = slowest.physics + slowest.denoiser + slowest.waiting + slowest.moving
    times = [
        ideal,
        tiled(work.with_halo),
        tiled(work.with_quantisation),
        tiled(work.with_padding),
        tiled(work.with_padding) + uneven,
        tiled(work.with_padding) + uneven + moved,
        tiled(work.with_padding) + uneven + moved + max(0.0, slowest.total - busy),
        slowest.total,
    ]
    return [
        Factor(name, before / after, advice)
        for (name, advice), before, after in zip(_ADVICE.items(), times, times[1:], strict=False)
    ]


def limit(found: Sequence[Factor]) -> str:
    """One sentence: what holds a run back most, and what to change."""
    worst = min(found, key=lambda factor: factor.value)
    if worst.value > 0.97:
        return "Nothing takes more than 3 % away."
    return f"{worst.name} takes {1 - worst.value:.0%} away: try {worst.advice}."
