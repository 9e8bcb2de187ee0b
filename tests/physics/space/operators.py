"""Operators that have a local form, built anew from fixed seeds, and images for them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from deepinv.physics import (
    Blur,
    BlurFFT,
    Decolorize,
    Demosaicing,
    Denoising,
    Downsampling,
    DownsamplingMatlab,
    HyperSpectralUnmixing,
    Inpainting,
    Physics,
    SpaceVaryingBlur,
    Upsampling,
)

from shardinv.problems import BlurDownsampling

#: Neither side is a multiple of anything that matters.
SPATIAL = (26, 19)
VOLUME = (9, 8, 11)
D = torch.float64


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out DeepInverse's warnings about what the tests do on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = D) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def kernel(*shape: int, seed: int = 1, dtype: torch.dtype = D) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


Case = tuple[Callable[[], Physics], tuple[int, ...]]


def cases() -> dict[str, Case]:
    """Every family, with the shape (B, C, *spatial) of an image for it."""
    found: dict[str, Case] = {}

    def add(name: str, make: Callable[[], Physics], shape: tuple[int, ...]) -> None:
        found[name] = (make, shape)

    image = (2, 3, *SPATIAL)
    for padding in ("valid", "circular", "reflect", "replicate", "constant"):
        for taps in ((5, 5), (4, 3), (1, 9)):
            add(
                f"Blur {padding} {taps}",
                lambda p=padding, k=taps: Blur(filter=kernel(1, 1, *k), padding=p),
                image,
            )
        add(
            f"Blur {padding} for each batch and channel",
            lambda p=padding: Blur(filter=kernel(2, 3, 3, 4), padding=p),
            image,
        )
        add(
            f"Blur {padding} fft",
            lambda p=padding: Blur(filter=kernel(1, 3, 3, 4), padding=p, use_fft=True),
            image,
        )
        add(
            f"Blur {padding} 3-D",
            lambda p=padding: Blur(filter=kernel(1, 1, 3, 4, 2), padding=p),
            (1, 2, *VOLUME),
        )
        for first in (True, False):
            maps = SPATIAL if first or padding != "valid" else (SPATIAL[0] - 4, SPATIAL[1] - 3)
            add(
                f"SpaceVaryingBlur {padding} {first}",
                lambda p=padding, f=first, m=maps: SpaceVaryingBlur(
                    filters=kernel(1, 1, 2, 5, 4),
                    multipliers=kernel(1, 3, 2, *m, seed=5),
                    padding=p,
                    mask_first=f,
                ),
                image,
            )
        for factor in (2, 3):
            add(
                f"Downsampling {padding} {factor}",
                lambda p=padding, f=factor: Downsampling(
                    img_size=(3, *SPATIAL), filter=kernel(1, 1, 4, 3), factor=f, padding=p
                ),
                image,
            )
    for name in ("gaussian", "bilinear", "bicubic", "sinc"):
        add(
            f"Downsampling {name}",
            lambda n=name: Downsampling(
                img_size=(1, *SPATIAL), filter=n, factor=2, padding="circular"
            ).to(D),
            (1, 1, *SPATIAL),
        )
    add("Downsampling None", lambda: Downsampling(filter=None, factor=3), image)
    for padding in ("circular", "reflect", "replicate", "constant"):
        add(
            f"Upsampling {padding}",
            lambda p=padding: Upsampling(
                img_size=(3, 26, 38), filter=kernel(1, 1, 5, 4), factor=2, padding=p
            ),
            (2, 3, 13, 19),
        )
    add("DownsamplingMatlab", lambda: DownsamplingMatlab(factor=2), image)
    add("BlurFFT", lambda: BlurFFT((3, *SPATIAL), filter=kernel(1, 1, 5, 4)), image)
    add("BlurFFT on the whole", whole_kernel, image)
    add("BlurDownsampling", lambda: BlurDownsampling(kernel(1, 1, 5, 3), 2), (2, 3, 26, 18))
    add("Inpainting", lambda: Inpainting((3, *SPATIAL), mask=kernel(3, *SPATIAL)), image)
    add("Inpainting of pixels", lambda: Inpainting((3, *SPATIAL), kernel(1, *SPATIAL)), image)
    add("Demosaicing", lambda: Demosaicing((3, *SPATIAL)).to(D), image)
    add("Denoising", Denoising, image)
    add("Decolorize", lambda: Decolorize().to(D), image)
    add("Unmixing", lambda: HyperSpectralUnmixing(M=kernel(3, 5)), image)
    return found


def whole_kernel() -> Physics:
    """A blur by FFT whose compact kernel was given on the whole image."""
    whole = torch.zeros(1, 1, *SPATIAL, dtype=D)
    whole[..., 10:15, 8:12] = kernel(5, 4)
    return BlurFFT((3, *SPATIAL), filter=whole)


def composed() -> dict[str, Case]:
    """Compositions, each of whose operators has a local form."""
    image = (2, 3, *SPATIAL)

    def blur(padding: str = "reflect", seed: int = 1, taps: tuple[int, int] = (5, 4)) -> Physics:
        return Blur(filter=kernel(1, 1, *taps, seed=seed), padding=padding)

    def mask() -> Physics:
        return Inpainting((3, *SPATIAL), mask=kernel(3, *SPATIAL, seed=4))

    return {
        "mask of blur": (lambda: mask() * blur(), image),
        "blur of mask": (lambda: blur() * mask(), image),
        "blur of blur": (lambda: blur("circular", 2, (3, 3)) * blur("valid"), image),
        "colours of downsampling of blur": (
            lambda: (
                Decolorize().to(D)
                * (Downsampling((3, *SPATIAL), filter=None, factor=2) * blur("replicate", 3))
            ),
            image,
        ),
    }


def transpose_of(operator: Any, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The adjoint of the undistributed operator, by autograd: its own is wrong for some kernels."""
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(operator.A(x), x, v)[0]
