"""The stride of a network: a shift of its input by a multiple of it shifts its output alike.

A tile that starts elsewhere is down-sampled at other pixels than the whole image is, and its result
differs by more than what a halo can mend.
"""

from __future__ import annotations

from typing import Any

from torch import nn

# By name, not by class: some of these need packages that are not always there.
_STRIDES = {
    "DRUNet": 8,
    "GSDRUNet": 8,
    "FFDNet": 2,
    "DnCNN": 1,
    "Restormer": 8,
    "SwinIR": 8,
    "SCUNet": 64,
}


def network_stride(network: Any) -> int:
    """The stride of a network in pixels.

    Taken from what is known of DeepInverse's networks, else the product of the strides of the
    convolutions, poolings and pixel rearrangements on its deepest way down: an upper bound, which
    is safe.

    Examples
    --------
    >>> network_stride(nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.MaxPool2d(2)))
    4
    """
    if not isinstance(network, nn.Module):
        return 1
    known = _known_stride(network)
    if known is not None:
        return known
    stride = 1
    for module in network.modules():
        inner = _known_stride(module)
        if inner is not None:
            # A wrapper of a known network: its own layers are counted in that number.
            return max(stride, inner)
        if isinstance(module, nn.PixelUnshuffle):
            stride *= module.downscale_factor
        elif isinstance(module, nn.modules.conv._ConvTransposeNd):
            continue
        elif isinstance(module, (nn.modules.conv._ConvNd, *_POOLS)):
            steps = module.stride if isinstance(module.stride, tuple) else (module.stride,)
            stride *= max(int(step) for step in steps)
    return min(stride, 64)


_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)


def _known_stride(module: nn.Module) -> int | None:
    if not type(module).__module__.startswith("deepinv."):
        return None
    names = [kind.__name__ for kind in type(module).__mro__]
    return next((_STRIDES[name] for name in names if name in _STRIDES), None)
