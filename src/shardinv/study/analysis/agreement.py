"""How far a run is from its reference, and whether that grows with the iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """An iterate beside the reference run's at the same iteration; image values in [0, 1].

    Parameters
    ----------
    psnr_difference_db
        PSNR against the truth, less that of the reference, in dB.
    relative
        Euclidean distance over the norm of the reference.
    maximum
        Largest absolute difference of a value.
    seams
        Relative distance in a band along the seams of tiles; None where there are none.
    """

    psnr_difference_db: float
    relative: float
    maximum: float
    seams: float | None


@dataclass(frozen=True)
class Growth:
    """How an error changes from one iteration to the next.

    Parameters
    ----------
    factor
        By which it is multiplied at each iteration: the median over pairs of iterations.
    interval
        That holds it with a probability of 95 %.
    p_value
        Of there being no trend (Kendall's rank correlation of the error with the iteration).
    """

    factor: float
    interval: tuple[float, float]
    p_value: float

    @property
    def grows(self) -> bool:
        """Whether the error grows, with a certainty of 95 %."""
        return self.p_value < 0.05 and self.factor > 1


def growth(errors: Sequence[float]) -> Growth | None:
    """Test whether errors grow with the iterations.

    Parameters
    ----------
    errors
        At each iteration. Iterations without an error are left out: before anything differs there
        is nothing that could grow.

    Returns
    -------
    Growth or None
        None with fewer than five errors, which tell nothing.

    Notes
    -----
    Theil-Sen slope of the logarithm: one outlier doesn't change it.

    Examples
    --------
    >>> found = growth([0.0, 1e-6, 2e-6, 4e-6, 8e-6, 16e-6, 32e-6])
    >>> round(found.factor, 6), found.grows
    (2.0, True)
    >>> growth([3e-7, 2e-7, 3e-7, 2e-7, 3e-7, 2e-7, 3e-7]).grows
    False
    """
    # With the extra "study" alone; the rest of the command line does without.
    from scipy import stats

    points = [(k, math.log(e)) for k, e in enumerate(errors) if e > 0 and math.isfinite(e)]
    if len(points) < 5:
        return None
    numbers, logarithms = zip(*points, strict=True)
    slope, _, low, high = stats.theilslopes(logarithms, numbers, alpha=0.95)
    p_value = float(stats.kendalltau(numbers, logarithms).pvalue)
    # Errors that are all equal have no rank correlation.
    p_value = 1.0 if math.isnan(p_value) else p_value
    return Growth(math.exp(slope), (math.exp(low), math.exp(high)), p_value)
