"""Where the windows of an image come from: all of it, or what was fetched of a sharded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import torch

from shardinv.exchange import Move, crop
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


class FetchedBoxes:
    """The windows of a sharded image: of this rank's box, and of boxes that are fetched around it.

    Parameters
    ----------
    local
        This rank's pixels, ``(B, C, *box.shape)``.
    box
        Which they are.
    fetched
        The other boxes' pixels, or the move that brings them. It is waited for when a window first
        needs it: windows within this rank's box are at hand before.
    boxes
        Which they are. A window lies in one box, or in several that share no pixel.
    """

    def __init__(
        self,
        local: torch.Tensor,
        box: Box,
        fetched: Sequence[torch.Tensor] | Move,
        boxes: Sequence[Box],
    ) -> None:
        self.local = local
        self.box = box
        self._fetched = fetched
        self._boxes = boxes

    def view(self, window: Box) -> torch.Tensor:
        """The pixels of a window: a view of one box where that holds it, else a copy."""
        if window in self.box:
            return crop(self.local, window, self.box)
        met = []
        own, others = (self.local, self.box), zip(self.finish(), self._boxes, strict=True)
        for piece, box in (own, *others):
            if window in box:
                return crop(piece, window, box)
            meet = window & box
            if not meet.is_empty:
                met.append((meet, crop(piece, meet, box)))
        return _joined(met, window, 0)

    def finish(self) -> Sequence[torch.Tensor]:
        """Wait for the boxes around this rank's; every rank must, sooner or later."""
        if isinstance(self._fetched, Move):
            self._fetched = self._fetched.finish()
        return self._fetched


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
