"""Scales, ticks and units of axes, from the values that are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shardinv.study.report.charts import Axis


def counted(title: str, values: Iterable[float], *, logarithmic: bool = True) -> Axis:
    """An axis with a tick at each value that occurs, as for numbers of ranks.

    Examples
    --------
    >>> counted("ranks", [1, 2, 4, 2]).ticks
    ((1, '1'), (2, '2'), (4, '4'))
    """
    found = sorted(set(values))
    ticks = tuple((value, f"{value:g}") for value in found)
    if not logarithmic or not found or found[0] <= 0:
        room = 0.06 * ((found[-1] - found[0]) or 1) if found else 1
        limits = (found[0] - room, found[-1] + room) if found else None
        return Axis(title, ticks=ticks, limits=limits)
    room = (found[-1] / found[0]) ** 0.06 if found[-1] > found[0] else 1.5
    return Axis(title, "log", ticks, (found[0] / room, found[-1] * room))


def logarithmic(title: str, values: Iterable[float]) -> Axis:
    """An axis of positive values over several decades; others are left out.

    Examples
    --------
    >>> [name for _, name in logarithmic("time in s", [0.03, 0.4]).ticks]
    ['0.02', '0.05', '0.1', '0.2', '0.5']
    """
    found = [value for value in values if value > 0 and math.isfinite(value)]
    if not found:
        return Axis(title)
    low, high = min(found) / 1.15, max(found) * 1.15
    decades = math.log10(high / low)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 8))
    mantissas = (1, 2, 5) if decades <= 2.5 else (1,)
    places = [
        mantissa * 10.0**power
        for power in range(first, last + 1, step)
        for mantissa in mantissas
    ]  # fmt: skip
    # The ticks next to the values are shown, so that a few values that are near have two at least.
    low = max((p for p in places if p <= low), default=low) if decades <= 2.5 else low
    high = min((p for p in places if p >= high), default=high) if decades <= 2.5 else high
    ticks = tuple((place, _plain(place)) for place in places if low <= place <= high)
    return Axis(title, "log", ticks, (low, high))


def shares(title: str, values: Iterable[float], *, least: float = 1.0) -> Axis:
    """From nothing to all, or further where values are."""
    most = max([least, *values])
    return Axis(title, limits=(0.0, 1.05 * most), percent=True)


def unit_of_time(seconds: Iterable[float]) -> tuple[str, float]:
    """A unit that suits the values, and by what to multiply them.

    Examples
    --------
    >>> unit_of_time([0.2, 0.004])
    ('ms', 1000.0)
    """
    most = max(seconds, default=1.0)
    if most >= 1:
        return "s", 1.0
    return ("ms", 1e3) if most >= 1e-3 else ("µs", 1e6)


def unit_of_bytes(values: Sequence[float]) -> tuple[str, float]:
    """The same of bytes.

    Examples
    --------
    >>> unit_of_bytes([3e9])[0]
    'GiB'
    """
    most = max(values, default=0.0)
    powers = {"GiB": 30, "MiB": 20, "KiB": 10}
    return next(((u, 2.0**-p) for u, p in powers.items() if most >= 2**p), ("bytes", 1.0))


def _plain(value: float) -> str:
    if 1e-4 < value < 1e5:
        return f"{value:.10f}".rstrip("0").rstrip(".")
    mantissa, power = f"{value:.0e}".split("e")
    digits = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}" if mantissa == "1" else f"{mantissa}·10{digits}"
