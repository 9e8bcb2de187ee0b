"""The local forms of DeepInverse's operators."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from deepinv.physics import (
    Blur,
    BlurFFT,
    Decolorize,
    Denoising,
    Downsampling,
    DownsamplingMatlab,
    HyperSpectralUnmixing,
    Inpainting,
    Physics,
    SpaceVaryingBlur,
    Upsampling,
)
from deepinv.physics.forward import ComposedLinearPhysics, ComposedPhysics
from deepinv.physics.functional.imresize import cubic_contribution

from shardinv.physics.space.axes import Padding
from shardinv.physics.space.convolution import LocalConvolution, support, worth_fourier
from shardinv.physics.space.local import Chain
from shardinv.physics.space.pointwise import LocalMixture, LocalMultiplication
from shardinv.physics.space.registry import (
    NotLocalError,
    chain_of,
    register_local_form,
)
from shardinv.physics.space.transposed import LocalSpreading
from shardinv.physics.space.varying import LocalVaryingBlur


def _padding(name: str) -> Padding:
    lowered = name.lower()
    return "constant" if lowered == "zeros" else lowered  # type: ignore[return-value]


def _needs(value: torch.Tensor | None, name: str, operator: Physics) -> torch.Tensor:
    if value is None:
        raise NotLocalError(
            f"this {type(operator).__name__} has no {name} yet: set it first "
            f"(physics.update({name}=...))"
        )
    return value


@register_local_form(Blur)
def blur(operator: Any) -> LocalConvolution:
    """Any padding, in two or three dimensions."""
    kernel = _needs(operator.filter, "filter", operator)
    return LocalConvolution(kernel, _padding(operator.padding), fourier=operator.use_fft)


def _small_blur_fft(operator: Any, shape: tuple[int, ...]) -> Physics:
    kernel, centre = _compact(operator)
    if centre is not None:
        # DeepInverse takes the middle for the centre: zeros make it that.
        margins: list[int] = []
        for taps, middle in zip(reversed(kernel.shape[2:]), reversed(centre), strict=True):
            half = max(middle, taps - 1 - middle)
            margins += [half - middle, half - (taps - 1 - middle)]
        kernel = torch.nn.functional.pad(kernel, margins)
    return BlurFFT(img_size=shape, filter=kernel, device=kernel.device)


def _compact(operator: Any) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """The kernel of a blur by FFT, cut to its support where it fills the image."""
    kernel, pixels = operator.filter, prod(operator.img_size[-2:])
    if 2 * prod(kernel.shape[2:]) <= pixels:
        return kernel, None
    if kernel.requires_grad:
        raise NotLocalError("a kernel as large as the image that needs a gradient is not compact")
    kernel, centre = support(kernel)
    if 2 * prod(kernel.shape[2:]) > pixels:
        raise NotLocalError(
            f"the kernel of this BlurFFT is not compact: it reaches over {tuple(kernel.shape[2:])} "
            f"of {tuple(operator.img_size[-2:])} pixels"
        )
    return kernel, centre


@register_local_form(BlurFFT, twin=_small_blur_fft)
def blur_fft(operator: Any) -> LocalConvolution:
    """A circular convolution, where the kernel is compact."""
    _needs(operator.filter, "filter", operator)
    kernel, centre = _compact(operator)
    return LocalConvolution(
        kernel, "circular", centre=centre, fourier=worth_fourier(kernel.shape[2:])
    )


def _small_downsampling(operator: Any, shape: tuple[int, ...]) -> Physics:
    # DeepInverse's works out Fourier coefficients of its image size in every call: at 4096² that
    # would cost each rank seconds, and whole complex images.
    return Downsampling(
        img_size=shape,
        filter=operator.filter,
        factor=operator.factor,
        padding=operator.padding,
        device="cpu" if operator.filter is None else operator.filter.device,
    )


@register_local_form(Downsampling, twin=_small_downsampling)
def downsampling(operator: Any) -> LocalConvolution:
    """Any filter, factor and padding. The pixels that are not kept are not computed."""
    return _downsampling(operator, None if operator.imsize is None else operator.imsize[-2:])


def _downsampling(operator: Any, image: Any) -> LocalConvolution:
    return LocalConvolution(
        operator.filter,
        _padding(operator.padding) if operator.filter is not None else "constant",
        operator.factor,
        ndim=2,
        image=image,
    )


def _small_upsampling(operator: Any, shape: tuple[int, ...]) -> Physics:
    output = tuple(n * operator.factor for n in shape[1:])
    return Upsampling(
        img_size=(shape[0], *output),
        filter=operator.filter,
        factor=operator.factor,
        padding=operator.padding,
    ).to(operator.filter)


@register_local_form(Upsampling, twin=_small_upsampling)
def upsampling(operator: Any) -> LocalSpreading:
    """The adjoint of down-sampling."""
    size = None if operator.imsize is None else operator.imsize[-2:]
    return LocalSpreading(_downsampling(operator, None), size)


@register_local_form(DownsamplingMatlab)
def downsampling_matlab(operator: Any) -> LocalConvolution:
    """MATLAB's imresize by a whole factor: a separable kernel, the border pixel repeated."""
    factor = operator.factor
    if operator.kernel != "cubic" or operator.padding != "reflect":
        raise NotLocalError(
            f"imresize with kernel {operator.kernel!r} and padding {operator.padding!r} has no "
            "local form"
        )
    scale = factor if operator.antialiasing else 1
    # Output i lies over the image at (i + 1/2) factor - 1/2; the kernel is 2 scale wide each way.
    middle = (factor - 1) / 2
    first = -2 * scale
    positions = torch.arange(first, 2 * scale + factor + 1, dtype=torch.float64)
    weights = cubic_contribution((positions - middle) / scale)
    found = weights.nonzero().flatten()
    low, high = int(found[0]), int(found[-1]) + 1
    weights = weights[low:high] / weights[low:high].sum()
    # Tap j of a convolution meets the pixel centre - j: the mirror image of a correlation's.
    kernel = torch.outer(weights, weights).flip(0, 1)[None, None]
    before = -(first + low)
    centre = len(weights) - 1 - before
    return LocalConvolution(
        kernel, "symmetric", factor, centre=(centre, centre), cast=True, name="kernel"
    )


def _small_varying(operator: Any, shape: tuple[int, ...]) -> Physics:
    taps = operator.filters.shape[3:]
    lost = not operator.mask_first and operator.padding == "valid"
    kept = tuple(n - k + 1 if lost else n for n, k in zip(shape[1:], taps, strict=True))
    # The real maps, repeated where they are smaller than the small image.
    maps = operator.multipliers
    for axis, n in enumerate(kept, 3):
        maps = maps.index_select(axis, torch.arange(n, device=maps.device) % maps.shape[axis])
    return SpaceVaryingBlur(
        filters=operator.filters,
        multipliers=maps,
        padding=operator.padding,
        use_fft=operator.use_fft,
        mask_first=operator.mask_first,
        device=maps.device,
    )


@register_local_form(SpaceVaryingBlur, twin=_small_varying)
def space_varying_blur(operator: Any) -> LocalVaryingBlur:
    """Any padding, maps before or after the convolutions."""
    return LocalVaryingBlur(
        _needs(operator.filters, "filters", operator),
        _needs(operator.multipliers, "multipliers", operator),
        _padding(operator.padding),
        mask_first=operator.mask_first,
        fourier=operator.use_fft,
    )


def _small_inpainting(operator: Any, shape: tuple[int, ...]) -> Physics:
    mask = operator.mask
    for back in range(1, len(shape)):
        if back < mask.ndim and mask.shape[-back] != 1:
            index = torch.arange(shape[-back], device=mask.device) % mask.shape[-back]
            mask = mask.index_select(mask.ndim - back, index)
    return Inpainting(img_size=shape, mask=mask, device=mask.device)


@register_local_form(Inpainting, twin=_small_inpainting)
def inpainting(operator: Any) -> LocalMultiplication:
    """A mask for each pixel; demosaicing as well."""
    return LocalMultiplication(_needs(operator.mask, "mask", operator), masks_noise=True)


@register_local_form(Denoising)
def denoising(operator: Any) -> LocalMultiplication:
    """The identity, or a gain."""
    return LocalMultiplication(torch.as_tensor(operator.mask))


@register_local_form(Decolorize)
def decolorize(operator: Any) -> LocalMixture:
    """A weighted sum of channels."""
    return LocalMixture(operator.srf.flatten()[None])


@register_local_form(HyperSpectralUnmixing)
def unmixing(operator: Any) -> LocalMixture:
    """A matrix that mixes channels."""
    return LocalMixture(operator.M.mT, name="M")


@register_local_form(ComposedPhysics)
@register_local_form(ComposedLinearPhysics)
def composed(operator: Any) -> Chain:
    """A chain, each of whose operators has a local form."""
    return chain_of(list(operator.physics_list))
