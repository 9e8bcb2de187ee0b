"""The true image of a demonstration: a square cut from the middle of a photograph."""

from __future__ import annotations

import torch
from torch import Tensor


def centre_square(image: Tensor, size: int) -> tuple[Tensor, bool]:
    """Cut the central square, mirroring the photograph where it is too small.

    Parameters
    ----------
    image
        Shape ``(1, C, H, W)``.
    size
        Side of the square in pixels.

    Returns
    -------
    square
        Shape ``(1, C, size, size)``.
    mirrored
        Whether the photograph had to be continued by mirror images of itself. The result is then a
        test image of that size, not a photograph of that size.

    Examples
    --------
    >>> square, mirrored = centre_square(torch.arange(4.0).reshape(1, 1, 1, 4), 6)
    >>> square[0, 0, 0].tolist(), mirrored
    ([0.0, 0.0, 1.0, 2.0, 3.0, 3.0], True)
    """
    rows, columns = (_mirrored_centre(n, size).to(image.device) for n in image.shape[-2:])
    square = image.index_select(-2, rows).index_select(-1, columns)
    return square.contiguous(), size > min(image.shape[-2:])


def _mirrored_centre(length: int, size: int) -> Tensor:
    """Indices of ``size`` pixels about the centre of ``length``, reflected at the borders."""
    start = (length - size) // 2
    index = torch.arange(start, start + size) % (2 * length)
    return torch.where(index < length, index, 2 * length - 1 - index)
