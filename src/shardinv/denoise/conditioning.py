"""Cutting a network's other arguments along with the image: noise levels, noise maps, guides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardinv.denoise.windows import FetchedBoxes
from shardinv.exchange import crop
from shardinv.geometry import Box


def cut_argument(value: Any, image_shape: Sequence[int], windows: Sequence[Box]) -> Any:
    """What a network gets in place of ``value`` when it sees a batch of windows of the image.

    Parameters
    ----------
    value
        Any argument. A tensor (or list) with one entry for each image of the batch is repeated for
        each window; one with the image's spatial axes (a noise map), or what was fetched of a
        sharded one, is cut, where those axes are not of length one. Everything else is handed on.
    image_shape
        ``(B, C, *spatial)``.
    windows
        The windows that are stacked along the batch axis, of one shape.

    Returns
    -------
    Any
        The argument for a batch of ``len(windows) * B`` images, window by window.

    Raises
    ------
    ValueError
        If a tensor with as many axes as the image has a spatial axis of another length than it.
    """
    batch = image_shape[0]
    if (
        isinstance(value, list)
        and len(value) == batch
        and all(
            isinstance(entry, (int, float)) or (isinstance(entry, torch.Tensor) and not entry.ndim)
            for entry in value
        )
    ):
        return value * len(windows)
    if isinstance(value, FetchedBoxes):
        parts = [value.view(window) for window in windows]
        if parts[0].shape[0] != batch:
            parts = [part.expand(batch, *part.shape[1:]) for part in parts]
        return torch.cat(parts)
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    parts = [value]
    if value.ndim == len(image_shape):
        spatial = tuple(value.shape[2:])
        wanted = tuple(image_shape[2:])
        if any(n not in (1, full) for n, full in zip(spatial, wanted, strict=True)):
            raise ValueError(
                f"an argument of shape {tuple(value.shape)} goes with an image of shape "
                f"{tuple(image_shape)}: its spatial axes must be the image's, or of length 1"
            )
        parts = [crop(value, _on_axes(window, spatial)) for window in windows]
    elif value.shape[0] == batch:
        parts = [value] * len(windows)
    if len(parts) < len(windows):
        return value
    if value.shape[0] != batch and len(windows) > 1:
        # One for the whole batch: for several windows it must be one for each image.
        parts = [part.expand(batch, *part.shape[1:]) for part in parts]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _on_axes(window: Box, spatial: Sequence[int]) -> Box:
    """The window on a tensor some of whose axes have length one and are not cut."""
    return Box(
        tuple(0 if n == 1 else start for n, start in zip(spatial, window.start, strict=True)),
        tuple(1 if n == 1 else stop for n, stop in zip(spatial, window.stop, strict=True)),
    )
