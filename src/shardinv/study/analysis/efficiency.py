"""Strong scaling in numbers: speedup, efficiency, and efficiency at equal work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scaling:
    """How a run on several workers compares with a baseline on fewer.

    Parameters
    ----------
    speedup
        Baseline's time over this one's.
    efficiency
        Speedup over the ratio of workers; 1 is ideal.
    work_normalised_efficiency
        The same, each run's time divided by the work that it does: the pixels that its network
        processes over those of the image. It takes out what tiles cost, wherever they run.
    """

    speedup: float
    efficiency: float
    work_normalised_efficiency: float


def scaling(
    seconds: float,
    workers: int,
    work: float,
    *,
    baseline_seconds: float,
    baseline_workers: int = 1,
    baseline_work: float = 1.0,
) -> Scaling:
    r"""Compare the time of an iteration with a baseline's.

    With times :math:`T`, workers :math:`N` and work multipliers :math:`W`, efficiency is
    :math:`E = T_0 N_0 / (T N)`, and at equal work :math:`E\, W / W_0`.

    Parameters
    ----------
    seconds, workers, work
        Of the run: seconds of an iteration, number of workers, work multiplier.
    baseline_seconds, baseline_workers, baseline_work
        Of what it is compared with.

    Raises
    ------
    ValueError
        If a number isn't positive.

    Examples
    --------
    >>> found = scaling(2.0, 4, 1.5, baseline_seconds=6.0)
    >>> found.speedup, found.efficiency, found.work_normalised_efficiency
    (3.0, 0.75, 1.125)
    """
    given = (seconds, workers, work, baseline_seconds, baseline_workers, baseline_work)
    if not all(value > 0 for value in given):
        raise ValueError(f"times, workers and work must be positive, got {given}")
    speedup = baseline_seconds / seconds
    efficiency = speedup * baseline_workers / workers
    return Scaling(speedup, efficiency, efficiency * work / baseline_work)


def work_multiplier(shape: Sequence[int], windows: Sequence[Sequence[int]]) -> float:
    """Pixels that a network processes over those of the image.

    Parameters
    ----------
    shape
        Of the image's spatial axes.
    windows
        The spatial shape of each window that is processed, with its halo and its padding.

    Examples
    --------
    >>> work_multiplier((4, 4), [(4, 3), (4, 3)])
    1.5
    """
    return sum(_pixels(window) for window in windows) / _pixels(shape)


def _pixels(shape: Sequence[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
