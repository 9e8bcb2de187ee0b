"""Where the windows of an image come from: all of it, or what was fetched of a sharded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import torch

from shardinv.exchange import crop
from shardinv.geometry import Box


class Windows(Protocol):
    """Gives any window that this rank's tiles need, as a view ``(B, C, *window.shape)``."""

    def view(self, window: Box) -> torch.Tensor:
        """The pixels of a window."""


@dataclass(frozen=True)
class WholeImage:
    """The windows of an image that this rank holds."""

    image: torch.Tensor

    def view(self, window: Box) -> torch.Tensor:
        """The pixels of a window."""
        return crop(self.image, window)


@dataclass(frozen=True)
class FetchedBoxes:
    """The windows of a sharded image, put together from boxes of it that are at hand.

    Parameters
    ----------
    pieces
        The pixels, ``(B, C, *box.shape)`` each.
    boxes
        Which they are. A window lies in one of them, or in several that share no pixel.
    """

    pieces: Sequence[torch.Tensor]
    boxes: Sequence[Box]

    def view(self, window: Box) -> torch.Tensor:
        """The pixels of a window: a view of one box where that holds it, else a copy."""
        met = []
        for piece, box in zip(self.pieces, self.boxes, strict=True):
            if window in box:
                return crop(piece, window, box)
            meet = window & box
            if not meet.is_empty:
                met.append((meet, crop(piece, meet, box)))
        return _joined(met, window, 0)


def _joined(parts: list[tuple[Box, torch.Tensor]], window: Box, axis: int) -> torch.Tensor:
    """The parts of a window put together, slab by slab along an axis, then within each slab."""
    if len(parts) == 1:
        return parts[0][1]
    slabs: dict[int, list[tuple[Box, torch.Tensor]]] = {}
    for box, values in parts:
        slabs.setdefault(box.start[axis], []).append((box, values))
    if len(slabs) == 1:
        return _joined(parts, window, axis + 1)
    dim = axis - window.ndim
    return torch.cat([_joined(slabs[start], window, axis + 1) for start in sorted(slabs)], dim)


def frame_of(windows: Sequence[Box], own: Box) -> tuple[Box, ...]:
    """The boxes to fetch for windows on a rank that holds a box of its own.

    Where the windows lie around that box, they are what surrounds it: up to three to the power of
    the number of axes, less one, which share no pixel with it nor with each other, so that nothing
    is sent twice. Windows elsewhere are fetched one by one.
    """
    needed = [window for window in windows if window not in own]
    if not needed:
        return ()
    hull = Box(
        tuple(min(starts) for starts in zip(*(w.start for w in windows), strict=True)),
        tuple(max(stops) for stops in zip(*(w.stop for w in windows), strict=True)),
    )
    around = own in hull and not own.is_empty
    if not around or hull.size - own.size > sum(window.size for window in needed):
        # The whole windows: none of them is put together.
        return tuple(needed)
    intervals = [
        ((a, c), (c, d), (d, b))
        for a, b, c, d in zip(hull.start, hull.stop, own.start, own.stop, strict=True)
    ]
    cells = (
        Box(tuple(a for a, _ in cell), tuple(b for _, b in cell)) for cell in product(*intervals)
    )
    return tuple(cell for cell in cells if not cell.is_empty and cell != own)
