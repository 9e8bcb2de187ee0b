"""What the ways of starting a study's points have in common."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardinv.study.plan.point import Point


@dataclass(frozen=True)
class Ended:
    """A point that is through.

    Parameters
    ----------
    point
        Which.
    measured
        Whether it succeeded; if not, its error is among the results.
    """

    point: Point
    measured: bool


class Launcher(Protocol):
    """A way of starting points."""

    def run(
        self, points: Sequence[Point], tell: Callable[[str], None]
    ) -> Generator[Ended, None, None]:
        """Start points in their order, a point's reference runs before itself.

        Parameters
        ----------
        points
            To be measured.
        tell
            Called with what is going on, in a few words, whenever that changes.

        Yields
        ------
        Ended
            Each point as it ends. One that fails does not end the others.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C, when everything that was started has been ended.
        """
        ...


def words(point: Point) -> str:
    """A point in a few words."""
    return f"{point.system} {point.layout} {point.size}² on {point.ranks}"
