"""The stride of a network: a shift of its input by a multiple of it shifts its output alike.

A tile that starts elsewhere is down-sampled at other pixels than the whole image is, and its result
differs by more than what a halo can mend.
"""

from __future__ import annotations

from typing import Any

from torch import nn

# By name, not by class: some of these need packages that are not always there. Those whose layers
# tell are not listed.
_STRIDES = {
    "DRUNet": 8,
    "FFDNet": 2,
    "DnCNN": 1,
    "Restormer": 8,
    "SwinIR": 8,
    "SCUNet": 64,
    # Their layers down-sample without a stride that could be read off; five levels at most.
    "ADMUNet": 32,
    "NCSNpp": 32,
}
_DYADIC = ("WaveletDenoiser", "WaveletDictDenoiser")

_LARGEST = 64
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)


def network_stride(network: Any) -> int:
    """The stride of a network in pixels.

    Taken from what is known of DeepInverse's networks, else from the layers: the product of the
    factors of all those that down-sample, or of all those that up-sample if that is larger (one
    pooling layer may serve several levels). That is an upper bound, which is safe; powers of two
    beyond 64 are dropped from it.

    A function, or a layer that resamples in its ``forward`` alone, shows nothing and counts as 1:
    say ``distribute(..., stride=...)``.

    Examples
    --------
    >>> network_stride(nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.MaxPool2d(2)))
    4
    """
    if not isinstance(network, nn.Module):
        return 1
    stride = max(_factors(network))
    while stride > _LARGEST and stride % 2 == 0:
        stride //= 2
    return stride


def _factors(module: nn.Module) -> tuple[int, int]:
    """The factors by which a module's layers down-sample and up-sample, multiplied."""
    known = _known_stride(module)
    if known is not None:
        return known, known
    down, up = 1, 1
    if isinstance(module, nn.PixelUnshuffle):
        down = module.downscale_factor
    elif isinstance(module, nn.PixelShuffle):
        up = module.upscale_factor
    elif isinstance(module, nn.Upsample):
        up = _largest(module.scale_factor)
    elif isinstance(module, nn.modules.conv._ConvTransposeNd):
        up = _largest(module.stride)
    elif isinstance(module, (nn.modules.conv._ConvNd, *_POOLS)):
        down = _largest(module.stride)
    for child in module.children():
        more = _factors(child)
        down, up = down * more[0], up * more[1]
    return down, up


def _known_stride(module: nn.Module) -> int | None:
    for kind in type(module).__mro__:
        if kind.__module__.startswith("deepinv."):
            if kind.__name__ in _DYADIC:
                level: Any = module.level
                return int(2**level)
            if kind.__name__ in _STRIDES:
                return _STRIDES[kind.__name__]
    return None


def _largest(factors: Any) -> int:
    """The largest whole factor of one number or several; 1 where there is none."""
    several = factors if isinstance(factors, (tuple, list)) else (factors,)
    return max((int(f) for f in several if f is not None and f == int(f)), default=1)
