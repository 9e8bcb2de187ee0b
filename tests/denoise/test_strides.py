"""The stride of a network, which decides at which pixels tiles may start. No processes."""

from __future__ import annotations

import pytest
import torch
from deepinv.models import (
    DnCNN,
    DRUNet,
    EquivariantDenoiser,
    FFDNet,
    GSDRUNet,
    MedianFilter,
    UNet,
)
from torch import nn

from shardinv.denoise.strides import network_stride


class MyDRUNet(DRUNet):
    """A user's variation on a known network."""


def small_drunet(kind: type[DRUNet] = DRUNet) -> DRUNet:
    return kind(1, 1, nc=(2, 2, 2, 2), nb=1, pretrained=None)


@pytest.mark.parametrize(
    ("network", "stride"),
    [
        (small_drunet(), 8),
        (small_drunet(MyDRUNet), 8),
        (FFDNet(n_conv_layers=3, nf=2, pretrained=None), 2),
        (DnCNN(1, 1, depth=3, nf=2, pretrained=None), 1),
        (GSDRUNet(in_channels=1, out_channels=1, nb=1, nc=(2, 2, 2, 2)), 8),
        (EquivariantDenoiser(small_drunet()), 8),
        (MedianFilter(kernel_size=3), 1),
        (nn.Conv2d(1, 1, 3, padding=1), 1),
        (nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ConvTranspose2d(2, 1, 2, stride=2)), 2),
        (nn.Sequential(nn.PixelUnshuffle(3), nn.Conv2d(9, 9, 3), nn.PixelShuffle(3)), 3),
        (nn.Sequential(nn.AvgPool2d(2), nn.Upsample(scale_factor=2.0)), 2),
        (nn.Sequential(nn.MaxPool3d((1, 2, 2)), nn.Upsample(scale_factor=(1, 2, 2))), 2),
        (nn.Upsample(size=(8, 8)), 1),
        (nn.ModuleList([FFDNet(n_conv_layers=3, nf=2, pretrained=None), small_drunet()]), 16),
        (torch.tanh, 1),
    ],
)
def test_known_and_counted_strides(network: object, stride: int) -> None:
    assert network_stride(network) == stride


@pytest.mark.parametrize("scales", [2, 3, 4, 5])
def test_pooling_layer_used_at_several_levels(scales: int) -> None:
    network = UNet(scales=scales, channels_per_scale=[2] * scales)
    assert network_stride(network) == 2 ** (scales - 1)


def test_upper_bound_keeps_odd_factors() -> None:
    levels = [nn.Conv2d(1, 1, 3, stride=2) for _ in range(9)]
    assert network_stride(nn.Sequential(*levels)) == 64
    assert network_stride(nn.Sequential(nn.AvgPool2d(3), *levels)) == 48
