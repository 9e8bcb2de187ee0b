"""Continuing the pixels of a window past the image's border, and the transpose of that.

Which pixels are copied where is worked out in ``axes``; here it is done to tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from shardinv.geometry import Box
from shardinv.physics.space.axes import Sources

_MIRRORS = ("reflect", "symmetric")


def pad_window(values: torch.Tensor, window: Box, sources: Sequence[Sources]) -> torch.Tensor:
    """Crop a window to the pixels needed, and continue them past the border.

    Parameters
    ----------
    values
        ``(..., *window.shape)``.
    window
        The pixels that ``values`` are.
    sources
        For each axis, where the positions wanted are found. All must lie in the window.

    Returns
    -------
    torch.Tensor
        ``(..., *positions)``; a view of ``values`` where nothing has to be continued.
    """
    first = values.ndim - window.ndim
    for number, (start, wanted) in enumerate(zip(window.start, sources, strict=True)):
        axis = first + number
        core = _take(values, axis, wanted.core, start)
        parts = [core]
        for count, pixels, at_front in (
            (wanted.before, wanted.low, True),
            (wanted.after, wanted.high, False),
        ):
            if not count:
                continue
            if pixels is None:
                shape = list(core.shape)
                shape[axis] = count
                part = core.new_zeros(shape)
            else:
                part = _take(values, axis, pixels, start)
                if wanted.padding in _MIRRORS:
                    part = part.flip(axis)
                else:
                    shape = list(part.shape)
                    shape[axis] = count
                    part = part.expand(shape)
            parts.insert(0, part) if at_front else parts.append(part)
        values = core if len(parts) == 1 else torch.cat(parts, dim=axis)
    return values


def fold_window(padded: torch.Tensor, window: Box, sources: Sequence[Sources]) -> torch.Tensor:
    """Add every position back to the pixel it was copied from: the transpose of :func:`pad_window`.

    Parameters
    ----------
    padded
        ``(..., *positions)``. May be overwritten.
    window
        The pixels of the result; those that no position is a copy of are zero.
    sources
        As for :func:`pad_window`.
    """
    first = padded.ndim - window.ndim
    for number, (start, stop, wanted) in enumerate(
        zip(window.start, window.stop, sources, strict=True)
    ):
        axis = first + number
        low, high = wanted.core
        core = padded.narrow(axis, wanted.before, high - low)
        result = embed(core, axis, low - start, stop - high)
        for position, count, pixels in (
            (0, wanted.before, wanted.low),
            (wanted.before + high - low, wanted.after, wanted.high),
        ):
            if pixels is None:
                continue
            part = padded.narrow(axis, position, count)
            if wanted.padding in _MIRRORS:
                part = part.flip(axis)
            else:
                part = part.sum(dim=axis, keepdim=True)
            result.narrow(axis, pixels[0] - start, pixels[1] - pixels[0]).add_(part)
        padded = result
    return padded


def embed(values: torch.Tensor, axis: int, before: int, after: int) -> torch.Tensor:
    """Zeros before and after along one axis; the tensor itself where there are none."""
    if not before and not after:
        return values
    margins = [0, 0] * (values.ndim - 1 - axis) + [before, after]
    return F.pad(values, margins)


def _take(values: torch.Tensor, axis: int, pixels: tuple[int, int], start: int) -> torch.Tensor:
    low, high = pixels
    return values.narrow(axis, low - start, high - low)
