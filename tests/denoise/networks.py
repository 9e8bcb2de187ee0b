"""Small networks that the tests of the learned step run on tiles and on the whole image.

All draw their weights from torch's default generator, which the pool seeds alike on every rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from deepinv.models import DnCNN, DRUNet, FFDNet
from torch import Tensor, nn


def ffdnet(layers: int = 4, channels: int = 1) -> FFDNet:
    """Receptive field of two pixels a layer: a halo of that width is exact."""
    return FFDNet(n_conv_layers=layers, nf=4, img_channels=channels, pretrained=None).double()


def dncnn(depth: int = 4, channels: int = 1, dim: int = 2) -> DnCNN:
    """Receptive field of one pixel a layer."""
    return DnCNN(channels, channels, depth=depth, nf=4, pretrained=None, dim=dim).double()


def drunet(channels: int = 1, dim: int = 2) -> DRUNet:
    """Sees much further than any halo of the tests."""
    return DRUNet(channels, channels, nc=(4, 4, 4, 4), nb=1, pretrained=None, dim=dim).double()


class Strided(nn.Module):
    """Halves the image and doubles it again: sees 5 px, and its tiles must start at even pixels."""

    def __init__(self, channels: int = 1, out_channels: int | None = None) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, 3, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(3, 3, 3, padding=1)
        self.up = nn.ConvTranspose2d(3, out_channels or channels, 4, stride=2, padding=1)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.tanh(self.mid(torch.tanh(self.down(x)))))


class Conditioned(nn.Module):
    """Smooth, sees 2 px, and depends on a noise level of every form that denoisers are given."""

    def __init__(self, channels: int = 1, out_channels: int | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels + 1, 3, 3, padding=1)
        self.last = nn.Conv2d(3, out_channels or channels, 3, padding=1)
        self.double()

    def forward(self, x: Tensor, sigma: Any) -> Tensor:
        level = torch.as_tensor(sigma, dtype=x.dtype)
        if level.ndim == 1:
            level = level.view(-1, 1, 1, 1)
        level = level.expand(x.shape[0], 1, *x.shape[2:])
        return self.last(torch.tanh(self.first(torch.cat([x, level], 1))))


class Stencil(nn.Module):
    """Takes every floating and complex type: a five-point average, then a smooth non-linearity."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([0.4, 0.2, 0.15, 0.1, 0.1]))

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1))
        height, width = x.shape[-2:]
        offsets = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
        parts = [
            weight * padded[..., i : i + height, j : j + width]
            for weight, (i, j) in zip(self.weights, offsets)
        ]
        return torch.tanh(sum(parts))


class Blur(nn.Module):
    """As cheap as a network that looks at its neighbourhood can be."""

    def __init__(self, dim: int = 2) -> None:
        super().__init__()
        self.layer = {2: nn.Conv2d, 3: nn.Conv3d}[dim](1, 1, 3, padding=1).double()

    def forward(self, x: Tensor, sigma: float = 0.0) -> Tensor:
        return self.layer(x) + sigma
