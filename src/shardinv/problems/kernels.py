"""Point-spread functions of cameras, sampled on a pixel grid.

Only the kernels live here; the operators that apply them are in `blur_downsampling`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def shifted_gaussian(
    width: tuple[float, float],
    angle: float,
    shift: tuple[float, float] = (0.0, 0.0),
    *,
    radius: int,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Anisotropic Gaussian kernel, turned and moved by a fraction of a pixel.

    Parameters
    ----------
    width
        Standard deviations along the first and the second principal axis, in pixels.
    angle
        Angle from the row axis to the first principal axis, in radians.
    shift
        Centre of the Gaussian relative to the central pixel, (rows, columns), in pixels. Convolving
        with the kernel moves the image by it.
    radius
        The kernel has ``2 * radius + 1`` pixels a side.

    Returns
    -------
    Tensor
        Kernel of shape ``(1, 1, 2 * radius + 1, 2 * radius + 1)`` that sums to one.

    Raises
    ------
    ValueError
        If a width is not positive, or the shift leaves the grid.

    Examples
    --------
    >>> kernel = shifted_gaussian((1.5, 0.8), 0.3, (0.25, -0.5), radius=6)
    >>> rows = torch.arange(-6, 7, dtype=kernel.dtype)
    >>> round(float((kernel[0, 0].sum(1) * rows).sum()), 3)  # its centre of mass
    0.25
    """
    if min(width) <= 0:
        raise ValueError(f"a Gaussian's widths must be positive, got {width} pixels")
    if max(abs(shift[0]), abs(shift[1])) > radius:
        raise ValueError(f"shift {shift} leaves a kernel of radius {radius}: give a larger radius")
    grid = torch.arange(-radius, radius + 1, dtype=torch.float64)
    rows, columns = torch.meshgrid(grid - shift[0], grid - shift[1], indexing="ij")
    along = math.cos(angle) * rows + math.sin(angle) * columns
    across = -math.sin(angle) * rows + math.cos(angle) * columns
    kernel = torch.exp(-0.5 * ((along / width[0]) ** 2 + (across / width[1]) ** 2))
    return (kernel / kernel.sum()).to(dtype)[None, None]
