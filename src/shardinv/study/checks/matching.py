"""Whether the distributed run gives what the undistributed one does, and if not, why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardinv.study.checks.finding import Finding, Status

_TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Relative errors that rounding alone makes in a few iterations, with room to spare."""
_SEEN_DB = 0.1
"""A difference of PSNR above which results count as other ones."""


def tolerance(precision: str) -> float:
    """Relative error up to which runs in a precision count as the same."""
    return _TOLERANCES[precision]


@dataclass(frozen=True)
class Distance:
    """How far one iterate is from another.

    Parameters
    ----------
    relative
        Euclidean distance over the norm of the other.
    psnr_db
        PSNR less the other's, in dB.
    """

    relative: float
    psnr_db: float

    def __str__(self) -> str:
        """For people."""
        if self.relative == 0:
            return "no difference at all"
        # Adding zero makes a rounded -0.0 a positive one.
        return f"relative error {self.relative:.1e}, PSNR {round(self.psnr_db, 4) + 0.0:+.4f} dB"


def distribution(found: Distance, start: float, where: str, precision: str) -> Finding:
    """The distributed run beside the same tiles on one rank: what distribution itself changes.

    Parameters
    ----------
    found
        After some iterations.
    start
        Relative error of the first iterate, made from the measurements alone.
    where
        What was compared.
    precision
        Of the network.
    """
    name, most = "results: distribution", tolerance(precision)
    message = f"{found} to the same tiles on one rank, {where}"
    figures = {"relative": found.relative, "psnr_db": found.psnr_db, "start_relative": start}
    if found.relative <= most:
        return Finding(name, "ok", figures, message)
    if start > most:
        message += f"; the first iterate differs already, by {start:.1e}: other measurements"
        remedy = (
            "give each operator a random generator of its own for its noise, and check that all "
            "hosts read the same data; only then compare"
        )
    else:
        message += "; measurements are the same: an iteration itself differs"
        remedy = (
            "see that nothing in the loop draws random numbers or depends on the rank, and that "
            "all hosts have the same versions; SHARDINV_DEBUG=1 compares the ranks' values at "
            "every call"
        )
    return Finding(name, "failed", figures, message, remedy)


def halo(
    found: Distance,
    where: str,
    precision: str,
    overlap: int,
    reach: int,
    whole: bool,
    mended: Distance | None = None,
) -> Finding:
    """Tiles beside the network on the whole image, both on one rank: what the halo changes.

    Parameters
    ----------
    found
        After some iterations.
    where
        What was compared.
    precision
        Of the network.
    overlap
        The halo in pixels.
    reach, whole
        How far the network was seen to look, and whether it looks no further.
    mended
        The same with a halo as wide as that, where it was tried.
    """
    name = "results: halo"
    message = f"{found} to the network on the whole image, {where}"
    seen = f"{reach} px" if whole else f"more than {reach} px"
    figures = {
        "relative": found.relative,
        "psnr_db": found.psnr_db,
        "overlap": overlap,
        "reach": reach,
        "reach_is_whole": whole,
        "relative_with_reach": None if mended is None else mended.relative,
    }
    if found.relative <= tolerance(precision):
        return Finding(name, "ok", figures, f"{message}; halo {overlap} px, network sees {seen}")
    grave = not math.isfinite(found.psnr_db) or abs(found.psnr_db) > _SEEN_DB
    status: Status = "failed" if grave else "warning"
    if overlap < reach or not whole:
        message += f"; the halo of {overlap} px is smaller than what the network sees, {seen}"
        remedy = f"overlap: {reach}" + ("" if whole else " or more, as far as memory allows")
        if mended is not None:
            remedy += f"; tried here, that leaves {mended}"
    else:
        message += f"; the halo of {overlap} px is all that the network was seen to use"
        remedy = (
            "overlap: twice as much; if that changes nothing, the network uses the whole image (a "
            "mean, attention, a larger stride than known): tile: null"
        )
    return Finding(name, status, figures, message, remedy)
