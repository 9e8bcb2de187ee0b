"""Correlation of a padded window with a kernel and its transpose, directly or by Fourier transform.

No border is continued here, and nothing is known of boxes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSES = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def correlate(
    values: torch.Tensor, kernel: torch.Tensor, stride: tuple[int, ...], fourier: bool = False
) -> torch.Tensor:
    """Correlate with a kernel for each channel, where the kernel fits in whole.

    Parameters
    ----------
    values
        ``(B, C, *positions)``.
    kernel
        ``(b, c, *taps)`` with ``b`` 1 or ``B``, ``c`` 1 or ``C``.
    stride
        Every how manieth position of each axis is kept.
    fourier
        Compute it by Fourier transforms; for long kernels.

    Returns
    -------
    torch.Tensor
        ``(B, C, *outputs)``, with ``outputs = (positions - taps) // stride + 1``.
    """
    if fourier:
        return _correlate_fourier(values, kernel, stride)
    arranged, weight, groups = _arrange(values, kernel)
    convolve = _CONVOLUTIONS[kernel.ndim - 2]
    result = convolve(arranged, weight, stride=stride, groups=groups)
    return result.reshape(*values.shape[:2], *result.shape[2:])


def spread(
    values: torch.Tensor, kernel: torch.Tensor, stride: tuple[int, ...], fourier: bool = False
) -> torch.Tensor:
    """The transpose of :func:`correlate` (the adjoint, where the kernel is complex)."""
    kernel = kernel.conj().resolve_conj() if kernel.is_complex() else kernel
    if fourier:
        return _spread_fourier(values, kernel, stride)
    arranged, weight, groups = _arrange(values, kernel)
    if groups == 1 and all(step == 1 for step in stride):
        # Four times faster than torch's transpose, which has no fast way for a single channel.
        axes = tuple(range(2, kernel.ndim))
        margins = [n - 1 for n in reversed(kernel.shape[2:]) for _ in range(2)]
        result = _CONVOLUTIONS[len(axes)](F.pad(arranged, margins), weight.flip(axes))
    else:
        transpose = _TRANSPOSES[kernel.ndim - 2]
        result = transpose(arranged, weight, stride=stride, groups=groups)
    return result.reshape(*values.shape[:2], *result.shape[2:])


def check_kernel(values: torch.Tensor, kernel: torch.Tensor) -> None:
    """Raise unless a kernel goes with an image's batch, channels and type; also for no pixel.

    Raises
    ------
    ValueError
        If it does not.
    """
    if values.ndim != kernel.ndim:
        raise ValueError(
            f"an image (B, C, *spatial) with {kernel.ndim - 2} spatial axes is needed for a kernel "
            f"of shape {tuple(kernel.shape)}, got {values.ndim - 2}"
        )
    for name, own, image in zip(
        ("batch", "channels"), kernel.shape[:2], values.shape[:2], strict=True
    ):
        if own not in (1, image):
            raise ValueError(
                f"a kernel of shape {tuple(kernel.shape)} needs {own} {name}, the image has {image}"
            )
    # Under autocast the convolution converts both.
    if values.dtype != kernel.dtype and not torch.is_autocast_enabled(values.device.type):
        raise ValueError(
            f"the image is {values.dtype}, the kernel {kernel.dtype}: convert one of them "
            "(physics.to(x.dtype))"
        )


def _arrange(values: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Batch and channels as groups of a convolution, with a kernel each.

    Also where one kernel is for all: torch is several times faster at groups than at a batch of
    images with one channel.
    """
    batch, channels = values.shape[:2]
    taps, groups = kernel.shape[2:], batch * channels
    weight = kernel.expand(batch, channels, *taps).reshape(groups, 1, *taps)
    return values.reshape(1, groups, *values.shape[2:]), weight, groups


def _correlate_fourier(
    values: torch.Tensor, kernel: torch.Tensor, stride: tuple[int, ...]
) -> torch.Tensor:
    grid, taps = values.shape[2:], kernel.shape[2:]
    axes = tuple(range(2, values.ndim))
    if values.is_complex():
        product = torch.fft.fftn(values, dim=axes) * _spectrum(kernel, grid)
        circular = torch.fft.ifftn(product, dim=axes)
    else:
        product = torch.fft.rfftn(values, dim=axes) * _spectrum(kernel, grid)
        circular = torch.fft.irfftn(product, s=grid, dim=axes)
    # Outputs at the start do not wrap around; the last taps - 1 do.
    kept = tuple(slice(0, n - k + 1, s) for n, k, s in zip(grid, taps, stride, strict=True))
    return circular[(..., *kept)].contiguous()


def _spread_fourier(
    values: torch.Tensor, kernel: torch.Tensor, stride: tuple[int, ...]
) -> torch.Tensor:
    taps = kernel.shape[2:]
    axes = tuple(range(2, values.ndim))
    grid = tuple((n - 1) * s + k for n, s, k in zip(values.shape[2:], stride, taps, strict=True))
    spaced = values.new_zeros(*values.shape[:2], *grid)
    kept = tuple(slice(0, n - k + 1, s) for n, k, s in zip(grid, taps, stride, strict=True))
    index: tuple[Any, ...] = (Ellipsis, *kept)
    spaced[index] = values
    # The kernel was conjugated by the caller, so its spectrum is not taken as it is in correlate.
    flat = tuple(range(2, kernel.ndim))
    if values.is_complex():
        spectrum = torch.fft.fftn(kernel, s=grid, dim=flat)
        return torch.fft.ifftn(torch.fft.fftn(spaced, dim=axes) * spectrum, dim=axes)
    spectrum = torch.fft.rfftn(kernel, s=grid, dim=flat)
    return torch.fft.irfftn(torch.fft.rfftn(spaced, dim=axes) * spectrum, s=grid, dim=axes)


def _spectrum(kernel: torch.Tensor, grid: torch.Size) -> torch.Tensor:
    """Of the kernel as a correlation applies it: of its mirror image about the first tap."""
    axes = tuple(range(2, kernel.ndim))
    if kernel.is_complex():
        return torch.fft.fftn(kernel.conj(), s=tuple(grid), dim=axes).conj()
    return torch.fft.rfftn(kernel, s=tuple(grid), dim=axes).conj()
