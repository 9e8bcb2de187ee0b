"""Colours of the report: one for each meaning, told apart by colour-blind readers.

After Okabe and Ito (2008), darkened or lightened to a contrast of 3 to 1 with the page.
"""

from __future__ import annotations

# Name: on a light page and on a dark one.
COLOURS = {
    # Systems and layouts.
    "shardinv sharded": ("#0072b2", "#4dacea"),
    "shardinv replicated": ("#d55e00", "#ff8f45"),
    "deepinv.distributed": ("#008f68", "#2fcf9f"),
    "deepinv": ("#555555", "#b4b4b4"),
    "published": ("#aa3377", "#e58cc0"),
    "reference": ("#767676", "#969696"),
    # Stages and what is between them.
    "physics": ("#008f68", "#2fcf9f"),
    "denoiser": ("#3a8fc4", "#6bb8e6"),
    "forward": ("#3a8fc4", "#6bb8e6"),
    "backward": ("#00568a", "#3f83b8"),
    "update": ("#008f68", "#2fcf9f"),
    "rest": ("#8a8a8a", "#a0a0a0"),
    "waiting": ("#c98600", "#f0b429"),
    "moving": ("#d55e00", "#ff8f45"),
    "hidden": ("#b07aa8", "#d2a6cb"),
    # Where the workers' time goes.
    "useful": ("#0072b2", "#4dacea"),
    "halo work": ("#6fb6dd", "#9bd3f2"),
    "tile quantisation": ("#008f68", "#2fcf9f"),
    "network padding": ("#8a8800", "#d4d14a"),
    "uneven ranks": ("#c98600", "#f0b429"),
    "slow rank": ("#7a5195", "#b98ad6"),
    "communication and rest": ("#a05a2c", "#d99a66"),
    "communication": ("#d55e00", "#ff8f45"),
    "host": ("#aa3377", "#e58cc0"),
    # The page.
    "ink": ("#1f2328", "#e6e8ea"),
    "grid": ("#d8dbdf", "#3a4048"),
    "axis": ("#5b6168", "#a7adb4"),
    "page": ("#ffffff", "#15181c"),
}

_SPARE = ("#7a5195", "#b98ad6"), ("#2f6f6f", "#6fc2c2"), ("#a05a2c", "#d99a66")


def colour(name: str) -> str:
    """On a light page; a name that has none gets always the same spare one."""
    return _pair(name)[0]


def dark() -> dict[str, str]:
    """What becomes of each light colour on a dark page.

    Raises
    ------
    ValueError
        If one light colour would become two dark ones.
    """
    found: dict[str, str] = {}
    for light, other in (*COLOURS.values(), *_SPARE):
        if found.setdefault(light, other) != other:
            raise ValueError(f"{light} becomes {found[light]} and {other}")
    return found


def _pair(name: str) -> tuple[str, str]:
    return COLOURS.get(name) or _SPARE[sum(name.encode()) % len(_SPARE)]
