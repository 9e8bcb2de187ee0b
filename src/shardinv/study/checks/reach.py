"""How far a network sees: measured, because few networks say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_NEGLECTED = 1e-5
"""Part of all influence on a pixel that may come from beyond the reach."""

_SIDE = {2: 192, 3: 48}
"""Of the image that it is measured on, by the number of spatial axes."""


def reach_of(
    network: Callable[[Tensor, float], Tensor], like: Tensor, sigma: float, stride: int
) -> tuple[int, bool]:
    """:func:`reach` on an image of moderate size, no larger than another ``(B, C, *spatial)``."""
    axes = like.dim() - 2
    side = -(-min(_SIDE[axes], *like.shape[2:]) // stride) * stride
    return reach(network, (1, like.shape[1], *[side] * axes), sigma, stride, like.device)


def reach(
    network: Callable[[Tensor, float], Tensor],
    shape: Sequence[int],
    sigma: float,
    stride: int,
    device: torch.device,
) -> tuple[int, bool]:
    """Distance from which a pixel of a network's answer is still influenced.

    Parameters
    ----------
    network
        Undistributed.
    shape
        Of a noisy image ``(B, C, *spatial)`` to measure on; its side is twice the largest reach
        that can be found.
    sigma
        Strength of the denoiser.
    stride
        Of the network: the answer is watched in a block of so many pixels, each of which sees as
        far as the network does from its place.
    device
        Where the network is.

    Returns
    -------
    pixels : int
        The halo that holds all influence but a part in a hundred thousand, a multiple of the
        stride.
    whole : bool
        Whether that is all: False where the network sees past the image that it was measured on.

    Notes
    -----
    The gradient of the block's sum with random weights, by the input: where it is zero the block
    doesn't look. It is that of one noisy image; others may use the network's far connections more.
    """
    generator = torch.Generator().manual_seed(0)
    spatial = tuple(shape[2:])
    x = torch.rand(tuple(shape), generator=generator).to(device)
    middle = tuple(n // 2 // stride * stride for n in spatial)
    block: tuple[Any, ...] = (Ellipsis, *(slice(m, m + stride) for m in middle))
    with torch.enable_grad():
        x.requires_grad_()
        answer = network(x, sigma)[block]
        weights = torch.randn(answer.shape, generator=generator).to(device)
        (gradient,) = torch.autograd.grad((answer * weights).sum(), x)
    influence = gradient.abs().double().sum(dim=(0, 1)).cpu()
    distance = torch.zeros(spatial, dtype=torch.long)
    for axis, (n, m) in enumerate(zip(spatial, middle, strict=True)):
        place = torch.arange(n)
        away = torch.maximum(m - place, place - (m + stride - 1)).clamp(min=0)
        view = [1] * len(spatial)
        view[axis] = n
        distance = torch.maximum(distance, away.view(view))
    rings = torch.bincount(distance.flatten(), influence.flatten())
    beyond = rings.flip(0).cumsum(0).flip(0)
    pixels = int((beyond > _NEGLECTED * float(beyond[0])).sum()) - 1
    pixels = -(-pixels // stride) * stride
    return pixels, pixels < min(
        min(m, n - m - stride) for n, m in zip(spatial, middle, strict=True)
    )
