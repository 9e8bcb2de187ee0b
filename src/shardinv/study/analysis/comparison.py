"""What changed between two measurements of the same points, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardinv.study.analysis.statistics import median_interval, warm_up
from shardinv.study.analysis.summary import Row
from shardinv.study.plan.point import Point

# Both intervals hold their median together with a probability of 95 %.
_EACH = 0.975


@dataclass(frozen=True)
class Tolerance:
    """How much worse a point may be before it counts as a regression.

    Parameters
    ----------
    seconds, memory
        Of the time and of the peak memory, as a part: 0.05 is 5 %.
    psnr_db
        By which PSNR may be lower, in dB.
    """

    seconds: float = 0.05
    memory: float = 0.05
    psnr_db: float = 0.01


@dataclass(frozen=True)
class Change:
    """A point in two studies.

    Parameters
    ----------
    point
        Its settings.
    ratio
        The second one's seconds an iteration over the first one's: of the medians, and an interval
        that holds it with a probability of at least 95 %.
    psnr_db
        The second one's PSNR less the first one's, in dB.
    memory, bytes_sent
        The second one's over the first one's; None where one isn't known, or is nothing.
    """

    point: Point
    ratio: tuple[float, float, float]
    psnr_db: float
    memory: float | None
    bytes_sent: float | None

    @property
    def verdict(self) -> str:
        """Whether it is faster or slower beyond chance."""
        _, low, high = self.ratio
        return "slower" if low > 1 else "faster" if high < 1 else "no difference beyond chance"

    def regressions(self, tolerance: Tolerance) -> list[str]:
        """What is worse than is tolerated; of the time only what is beyond chance.

        More bytes than before are always told: they are counted, not measured.
        """
        found = []
        if self.ratio[1] > 1 + tolerance.seconds:
            found.append(f"takes {self.ratio[0]:.2f} times as long")
        if self.psnr_db < -tolerance.psnr_db:
            found.append(f"has {-self.psnr_db:.3g} dB less")
        if self.memory is not None and self.memory > 1 + tolerance.memory:
            found.append(f"takes {self.memory:.2f} times the memory")
        if self.bytes_sent is not None and self.bytes_sent > 1 + 1e-9:
            found.append(f"sends {self.bytes_sent:.3g} times the bytes")
        return found


@dataclass(frozen=True)
class Comparison:
    """Two studies.

    Parameters
    ----------
    changes
        Points that both have, in the order of the first.
    only_first, only_second
        Points that one of them has.
    """

    changes: list[Change]
    only_first: list[Point]
    only_second: list[Point]


def compare(first: Sequence[Row], second: Sequence[Row]) -> Comparison:
    """Compare two studies point by point.

    Parameters
    ----------
    first, second
        What `shardinv.study.analysis.summary.summarise` gave: before and after.
    """
    before = {_key(row): row for row in first}
    after = {_key(row): row for row in second}
    return Comparison(
        [_change(row, after[key]) for key, row in before.items() if key in after],
        [row.point for key, row in before.items() if key not in after],
        [row.point for key, row in after.items() if key not in before],
    )


def _key(row: Row) -> str:
    return row.point.model_copy(update={"repeat": 0}).key


def _change(before: Row, after: Row) -> Change:
    (middle0, low0, high0), (middle1, low1, high1) = _interval(before), _interval(after)
    return Change(
        point=before.point,
        ratio=(middle1 / middle0, low1 / high0, high1 / low0),
        psnr_db=after.psnr_db - before.psnr_db,
        memory=_ratio(before.peak_bytes, after.peak_bytes),
        bytes_sent=_ratio(before.bytes_sent, after.bytes_sent),
    )


def _interval(row: Row) -> tuple[float, float, float]:
    steady = [t for each in row.measurements for t in each.seconds[warm_up(each.seconds) :]]
    return median_interval(steady, _EACH)


def _ratio(before: float | None, after: float | None) -> float | None:
    return after / before if before and after is not None else None
