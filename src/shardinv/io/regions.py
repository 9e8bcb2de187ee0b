"""Regions of image files: reading no more of a file than one box of the image.

Images here are arrays with two or three spatial axes and perhaps one of channels. Their values
are not touched, except that integers are scaled to [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shardinv.geometry import Box
from shardinv.io.images import ImageError
from shardinv.io.sources import open_source

_CHANNEL_COUNTS = (1, 2, 3, 4)


@dataclass(frozen=True)
class ImageShape:
    """What a file holds, as far as is known without reading it.

    Attributes
    ----------
    channels
        Number of channels.
    spatial
        Spatial shape in pixels.
    dtype
        Type of the stored values, as NumPy names it.
    channel_axis
        Which axis of the stored array the channels are; None where there is none.
    """

    channels: int
    spatial: tuple[int, ...]
    dtype: str
    channel_axis: int | None


def image_shape(
    path: Path | str, *, ndim: int = 2, channels_last: bool | None = None
) -> ImageShape:
    """Shape and type of the image in a .npy, TIFF or Zarr file, without reading its values.

    Parameters
    ----------
    path
        The file; for Zarr the folder of an array, with the suffix ``.zarr``.
    ndim
        Number of spatial axes. An array with one more has channels.
    channels_last
        Whether the channels are the last axis or the first. Default: what a TIFF says, else the
        last if there are at most four there and more in front.

    Raises
    ------
    ImageError
        If the file is missing, can't be read by regions, or has another number of axes.
    """
    path = Path(path)
    with open_source(path) as (source, axes):
        shape, dtype = source.shape, source.dtype.name
    axis: int | None = None
    if len(shape) == ndim + 1:
        if channels_last is None and "S" in axes:
            channels_last = axes.endswith("S")
        if channels_last is None:
            channels_last = shape[-1] in _CHANNEL_COUNTS and shape[0] not in _CHANNEL_COUNTS
        axis = len(shape) - 1 if channels_last else 0
    elif len(shape) != ndim:
        raise ImageError(
            f"{path} holds an array of shape {shape}; for an image with {ndim} spatial axes it "
            f"must have {ndim} axes, or {ndim + 1} with channels. Give ndim="
        )
    spatial = tuple(n for number, n in enumerate(shape) if number != axis)
    return ImageShape(1 if axis is None else shape[axis], spatial, dtype, axis)


def read_region(
    path: Path | str,
    box: Box,
    *,
    channels_last: bool | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Read the pixels of a box.

    Of a .npy file and an uncompressed TIFF the pixels themselves are read, of a compressed TIFF the
    strips or tiles, and of Zarr the chunks, that meet the box.

    Parameters
    ----------
    path, channels_last
        As for :func:`image_shape`; the box says how many spatial axes there are.
    box
        In pixels of the whole image.
    dtype
        Floating-point type of the result.

    Returns
    -------
    Tensor
        ``(1, C, *box.shape)``. Integers are divided by the largest of their type; other values are
        as they are.

    Raises
    ------
    ImageError
        As for :func:`image_shape`; if the data are damaged, or of a type that is no image.
    ValueError
        If the box reaches outside the image.
    """
    path = Path(path)
    shape = image_shape(path, ndim=box.ndim, channels_last=channels_last)
    if box not in Box.whole(shape.spatial):
        raise ValueError(f"the box {box} reaches outside the image {shape.spatial} of {path}")
    kind = np.dtype(shape.dtype).kind
    if kind not in "buif":
        raise ImageError(f"{path} holds values of type {shape.dtype}: no image")
    index = list(box.slices())
    if shape.channel_axis is not None:
        index.insert(shape.channel_axis, slice(0, shape.channels))
    if box.is_empty:
        return torch.zeros((1, shape.channels, *box.shape), dtype=dtype)
    with open_source(path) as (source, _):
        array = source.read(tuple(index))
    array = array[None] if shape.channel_axis is None else np.moveaxis(array, shape.channel_axis, 0)
    # Divided in double precision: 32-bit integers have more digits than float32.
    values = array / np.iinfo(array.dtype).max if kind in "ui" else array.astype(np.float64)
    return torch.from_numpy(np.ascontiguousarray(values))[None].to(dtype)
