"""Where the windows of an image come from: all of it, or what was fetched of a sharded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """The windows of a sharded image, within boxes of it that were fetched.

    Parameters
    ----------
    pieces
        The pixels, ``(B, C, *box.shape)`` each.
    boxes
        Which they are.
    """

    pieces: Sequence[torch.Tensor]
    boxes: Sequence[Box]

    def view(self, window: Box) -> torch.Tensor:
        """The pixels of a window."""
        piece, box = next(
            (p, b) for p, b in zip(self.pieces, self.boxes, strict=True) if window in b
        )
        return crop(piece, window, box)
