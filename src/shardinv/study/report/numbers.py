"""Numbers as people read them; a unit stays on the line of its number."""

from __future__ import annotations

import math

_SPACE = "\N{NO-BREAK SPACE}"


def number(value: float, digits: int = 3) -> str:
    """With so many significant digits, without an exponent where a reader needs none.

    Examples
    --------
    >>> number(0.12345), number(1234.5), number(2.0e-7), number(0), number(-3.14159)
    ('0.123', '1234', '2.00e-7', '0', '−3.14')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    size = math.floor(math.log10(abs(value)))
    if -4 <= size < 6:
        text = f"{abs(value):.{max(0, digits - 1 - size)}f}"
    else:
        mantissa, power = f"{abs(value):.{digits - 1}e}".split("e")
        text = f"{mantissa}e{int(power)}"
    return f"−{text}" if value < 0 else text


def seconds(value: float) -> str:
    r"""With a unit.

    Examples
    --------
    >>> seconds(0.0123), seconds(2.5), seconds(4e-6)
    ('12.3\xa0ms', '2.50\xa0s', '4.00\xa0µs')
    """
    if value >= 1 or value == 0:
        return f"{number(value)}{_SPACE}s"
    return (
        f"{number(1e3 * value)}{_SPACE}ms" if value >= 1e-3 else f"{number(1e6 * value)}{_SPACE}µs"
    )


def percent(value: float) -> str:
    r"""A share.

    Examples
    --------
    >>> percent(0.6251), percent(0.004)
    ('63\xa0%', '0.4\xa0%')
    """
    return f"{100 * value:.{0 if abs(value) >= 0.095 else 1}f}{_SPACE}%"


def count(number: int, noun: str) -> str:
    """A number of things.

    Examples
    --------
    >>> count(1, "rank"), count(4, "rank")
    ('1 rank', '4 ranks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
