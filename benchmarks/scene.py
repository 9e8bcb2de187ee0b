"""The image that is measured: any box of it, without the rest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Periods in pixels along the rows and the columns, of one pattern each; none divides another.
_PERIODS = ((173.0, 211.0), (61.0, 43.0), (19.0, 29.0), (7.1, 90.0), (120.0, 5.3))


def scene(start: Sequence[int], stop: Sequence[int]) -> torch.Tensor:
    """Pixels ``(1, 3, rows, columns)`` in [0, 1] from one corner of a box to the other."""
    rows, columns = (
        torch.arange(a, b, dtype=torch.float32) for a, b in zip(start, stop, strict=True)
    )
    made = torch.full((1, 3, len(rows), len(columns)), 0.5)
    for channel in range(3):
        for number, (high, wide) in enumerate(_PERIODS):
            phase = 1.7 * number + 0.9 * channel
            # In place: a memory benchmark counts what the making of the image needs as well.
            made[0, channel].addr_(
                torch.cos(6.2832 / high * rows + phase),
                torch.cos(6.2832 / wide * columns - phase),
                alpha=0.5 / len(_PERIODS),
            )
    return made
