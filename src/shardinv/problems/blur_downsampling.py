"""Blur followed by decimation, computed only at the pixels that are kept.

DeepInverse has the same operator as `deepinv.physics.Downsampling`. It convolves at full
resolution, throws most of the result away, and keeps three complex images of Fourier coefficients
for its proximal operator: four times the work at factor 2 and, at 4096², 400 MB an operator.
Nothing here is distributed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from deepinv.physics import LinearPhysics
from torch import Tensor

from shardinv.physics.space import LocalConvolution, register_local_form


class BlurDownsampling(LinearPhysics):
    r"""Blur with a compact kernel and keep every ``factor``-th pixel, :math:`y = S (h * x)`.

    The image is continued by reflection, ``abc|dcba`` without repeating the border pixel, so flat
    regions stay flat up to the border.

    Parameters
    ----------
    kernel
        Shape ``(1, 1, h, w)`` with odd ``h`` and ``w``: one kernel for all channels.
    factor
        Decimation factor. Pixels ``0, factor, 2 * factor, ...`` are kept.
    **kwargs
        For `deepinv.physics.LinearPhysics`, e.g. ``noise_model``.

    Notes
    -----
    Maps ``(B, C, H, W)`` to ``(B, C, H / factor, W / factor)``. ``H`` and ``W`` must be multiples
    of ``factor`` and larger than half the kernel, or a `ValueError` is raised.
    """

    def __init__(
        self,
        kernel: Tensor,
        factor: int,
        *,
        device: torch.device | str = "cpu",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if kernel.dim() != 4 or kernel.shape[:2] != (1, 1):
            raise ValueError(f"kernel must have shape (1, 1, h, w), got {tuple(kernel.shape)}")
        if kernel.shape[2] % 2 == 0 or kernel.shape[3] % 2 == 0:
            raise ValueError(f"kernel must have odd sides, got {tuple(kernel.shape[2:])}")
        if factor < 1:
            raise ValueError(f"factor must be at least 1, got {factor}")
        self.factor = factor
        # Double precision, cast when used: a module cast to float64 is then exact to 1e-16.
        self.register_buffer("kernel", kernel.to(device=device, dtype=torch.float64))
        self.to(device)

    @property
    def radius(self) -> tuple[int, int]:
        """Half the kernel, (rows, columns): how far a pixel reaches."""
        return self.kernel.shape[2] // 2, self.kernel.shape[3] // 2

    def _weight(self, like: Tensor) -> Tensor:
        # conv2d correlates; a convolution needs the kernel flipped.
        kernel = self.kernel.to(device=like.device, dtype=like.dtype).flip(2, 3)
        return kernel.expand(like.shape[1], 1, -1, -1)

    def A(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Blur and decimate ``(B, C, H, W)``."""
        (p, q), s = self.radius, self.factor
        if x.shape[-2] % s or x.shape[-1] % s:
            raise ValueError(
                f"an image of {x.shape[-2]} x {x.shape[-1]} pixels can't be decimated by {s}: "
                f"crop it to multiples of {s}"
            )
        _check_reflection(x.shape[-2:], (p, q))
        padded = F.pad(x, (q, q, p, p), mode="reflect")
        return F.conv2d(padded, self._weight(x), stride=s, groups=x.shape[1])

    def A_adjoint(self, y: Tensor, **kwargs: Any) -> Tensor:
        """Transpose of `A`: spread ``(B, C, h, w)`` over ``(B, C, h * factor, w * factor)``."""
        (p, q), s = self.radius, self.factor
        _check_reflection((y.shape[-2] * s, y.shape[-1] * s), (p, q))
        # The last rows of the padded image reach no kept pixel; output_padding restores them.
        spread = F.conv_transpose2d(
            y, self._weight(y), stride=s, groups=y.shape[1], output_padding=s - 1
        )
        return _fold_reflection(_fold_reflection(spread, -2, p), -1, q)


def _check_reflection(size: Any, radius: tuple[int, int]) -> None:
    if any(r >= n for n, r in zip(size, radius, strict=True)):
        raise ValueError(
            f"an image of {size[0]} x {size[1]} pixels is too small for a kernel of radius "
            f"{radius}: reflection needs more pixels than the radius"
        )


def _fold_reflection(x: Tensor, axis: int, width: int) -> Tensor:
    """Transpose of reflection padding: add the margin back to the pixels it was copied from."""
    if width == 0:
        return x
    n = x.shape[axis] - 2 * width
    core = x.narrow(axis, width, n).clone()
    core.narrow(axis, 1, width).add_(x.narrow(axis, 0, width).flip(axis))
    core.narrow(axis, n - 1 - width, width).add_(x.narrow(axis, n + width, width).flip(axis))
    return core


@register_local_form(BlurDownsampling)
def _local(operator: BlurDownsampling) -> LocalConvolution:
    return LocalConvolution(
        operator.kernel, "reflect", operator.factor, cast=True, name="kernel", multiples=True
    )
