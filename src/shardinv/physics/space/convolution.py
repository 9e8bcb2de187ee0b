"""Convolution with a compact kernel, any continuation past the border, and decimation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from shardinv.geometry import Box, Partition
from shardinv.physics.space.axes import Axis, Padding, Sources
from shardinv.physics.space.filtering import check_kernel, correlate, spread
from shardinv.physics.space.local import (
    Kernels,
    LocalOperator,
    cut_axes,
    spatial_index,
    sum_over_nothing,
)
from shardinv.physics.space.padding import embed, fold_window, pad_window


class LocalConvolution(LocalOperator):
    r"""A convolution, every ``stride``-th pixel of it, :math:`y_i = \sum_j h_j x_{s i + c - j}`.

    Parameters
    ----------
    kernel
        ``(b, c, *taps)`` with ``b`` 1 or the batch, ``c`` 1 or the channels. None only decimates.
    padding
        How the image is continued; one for all axes.
    stride
        Every how manieth pixel is kept, for each axis, or one for all.
    ndim
        Number of spatial axes; needed where there is no kernel.
    centre
        The kernel's tap :math:`c` without displacement, for each axis; half its length by default.
    fourier
        Compute by Fourier transforms of the window.
    cast
        Convert the kernel to the image's type when it is used.
    name
        Name of the kernel as a parameter of the operator.
    multiples
        Whether only images whose sides are multiples of the stride are taken.
    image
        Spatial shape of the operator's images, where it is tied to one: an output does not tell
        how many of an image's last pixels were dropped.
    """

    def __init__(
        self,
        kernel: torch.Tensor | None,
        padding: Padding,
        stride: int | Sequence[int] = 1,
        *,
        ndim: int | None = None,
        centre: Sequence[int] | None = None,
        fourier: bool = False,
        cast: bool = False,
        name: str = "filter",
        multiples: bool = False,
        image: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if kernel is None and ndim is None:
            raise ValueError("a decimation without a kernel needs ndim=")
        self.ndim = kernel.ndim - 2 if kernel is not None else int(ndim or 0)
        if not 1 <= self.ndim <= 3:
            raise ValueError(
                "a kernel (b, c, *taps) with 1, 2 or 3 spatial axes is needed, got one of shape "
                f"{None if kernel is None else tuple(kernel.shape)}"
            )
        self.stride = (stride,) * self.ndim if isinstance(stride, int) else tuple(stride)
        self.padding, self.fourier, self.cast, self.multiples = padding, fourier, cast, multiples
        self._explicit_centre = None if centre is None else tuple(centre)
        self.image = None if image is None else tuple(image)
        self.name = name
        register(self, name, kernel)
        self._set_axes()

    def _set_axes(self) -> None:
        kernel = getattr(self, self.name)
        taps = (1,) * self.ndim if kernel is None else tuple(kernel.shape[2:])
        centre = self._explicit_centre or tuple(n // 2 for n in taps)
        self.axes = tuple(
            Axis(n, c, s, self.padding) for n, c, s in zip(taps, centre, self.stride, strict=True)
        )

    @property
    def kernels(self) -> dict[str, torch.Tensor]:
        """The kernel."""
        kernel = getattr(self, self.name)
        return {} if kernel is None else {self.name: kernel}

    @property
    def lead(self) -> tuple[int, int]:
        """The kernel's batch and channels."""
        kernel = getattr(self, self.name)
        return (1, 1) if kernel is None else (kernel.shape[0], kernel.shape[1])

    @property
    def trial_shape(self) -> tuple[int, ...]:
        """Somewhat more than twice the kernel, a multiple of the stride only where it must be."""
        extra = 0 if self.multiples else 1
        return tuple(
            axis.stride * -(-(2 * axis.taps + 3) // axis.stride) + extra for axis in self.axes
        )

    def periodic(self, ndim: int) -> tuple[bool, ...]:
        """Along all axes or none."""
        return tuple(axis.periodic for axis in self.axes)

    def output_shape(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The image's, less what valid padding loses, over the stride."""
        if len(spatial) != self.ndim:
            raise ValueError(
                f"an image with {self.ndim} spatial axes is needed, got one of {tuple(spatial)}"
            )
        if self.multiples and any(n % s for n, s in zip(spatial, self.stride, strict=True)):
            raise ValueError(
                f"an image of {' x '.join(map(str, spatial))} pixels can't be decimated by "
                f"{self.stride[0]}: crop it to multiples of {self.stride[0]}"
            )
        return tuple(axis.outputs(n) for axis, n in zip(self.axes, spatial, strict=True))

    def input_shape(self, output: Sequence[int]) -> tuple[int, ...]:
        """The operator's own, if it fits; else the output's times the stride, and what is lost."""
        if self.image is not None and self.output_shape(self.image) == tuple(output):
            return self.image
        return tuple(axis.inputs(n) for axis, n in zip(self.axes, output, strict=True))

    def output_partition(self, partition: Partition) -> Partition:
        """An output is in the box of the pixel that its kernel is centred on."""
        shape = partition.shape
        return cut_axes(
            partition,
            self.output_shape(shape),
            lambda axis, cut: self.axes[axis].follow(cut, shape[axis]),
        )

    def input_partition(self, output: Partition, spatial: Sequence[int]) -> Partition:
        """The first pixel of a box is the one that the box's first output is centred on."""
        return cut_axes(output, spatial, lambda axis, cut: self.axes[axis].lead(cut, spatial[axis]))

    def window(self, out_box: Box, spatial: Sequence[int]) -> Box:
        """The box times the stride, with the kernel's reach."""
        if out_box.is_empty:
            return Box((0,) * self.ndim, (0,) * self.ndim)
        spans = [sources.span for sources in self._sources(out_box, spatial)]
        return Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))

    def _sources(self, out_box: Box, spatial: Sequence[int]) -> list[Sources]:
        return [
            axis.sources(a, b, n)
            for axis, a, b, n in zip(self.axes, out_box.start, out_box.stop, spatial, strict=True)
        ]

    def _weight(self, values: torch.Tensor, kernels: Kernels | None) -> torch.Tensor | None:
        kernel = (self.kernels if kernels is None else kernels).get(self.name)
        if kernel is None:
            return None
        kernel = kernel.to(values.dtype) if self.cast else kernel
        check_kernel(values, kernel)
        # The functions of torch correlate: a convolution needs the kernel's mirror image.
        return kernel.flip(tuple(range(2, kernel.ndim)))

    def evaluate(
        self,
        values: torch.Tensor,
        window: Box,
        out_box: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Continue the window past the border, and correlate."""
        weight = self._weight(values, kernels)
        if out_box.is_empty:
            zeros = sum_over_nothing(values, self.ndim)
            padded = zeros[spatial_index(*[None] * self.ndim)].expand(
                *zeros.shape, *(axis.taps for axis in self.axes)
            )
            one = padded if weight is None else correlate(padded, weight, self.stride)
            return one.flatten(2)[..., :0].reshape(*one.shape[:2], *out_box.shape)
        padded = pad_window(values, window, self._sources(out_box, spatial))
        if weight is None:
            return padded[spatial_index(*(slice(None, None, s) for s in self.stride))]
        return correlate(padded, weight, self.stride, self.fourier)

    def transpose(
        self,
        values: torch.Tensor,
        out_box: Box,
        window: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Spread over the continued window, and fold it back."""
        weight = self._weight(values, kernels)
        if out_box.is_empty:
            one = sum_over_nothing(values, self.ndim)[spatial_index(*[None] * self.ndim)]
            spreaded = one if weight is None else spread(one, weight, self.stride)
            zeros = spreaded.flatten(2).sum(-1)[spatial_index(*[None] * self.ndim)]
            return zeros.expand(*zeros.shape[:2], *window.shape)
        if weight is None:
            padded = self._interleave(values)
        else:
            padded = spread(values, weight, self.stride, self.fourier)
        sources = self._sources(out_box, spatial)
        needed = self.window(out_box, spatial)
        folded = fold_window(padded, needed, sources)
        return grow(folded, needed, window)

    def _interleave(self, values: torch.Tensor) -> torch.Tensor:
        shape = [(n - 1) * s + 1 for n, s in zip(values.shape[2:], self.stride, strict=True)]
        padded = values.new_zeros(*values.shape[:2], *shape)
        padded[spatial_index(*(slice(None, None, s) for s in self.stride))] = values
        return padded

    def update(self, **values: Any) -> LocalOperator:
        """Another kernel, as a tensor of any size."""
        kernel = values.get(self.name)
        if kernel is None:
            return self
        if not isinstance(kernel, torch.Tensor):
            raise ValueError(f"{self.name} must be a tensor, got a {type(kernel).__name__}")
        old = getattr(self, self.name)
        return LocalConvolution(
            kernel if old is None else kernel.to(old),
            self.padding,
            self.stride,
            fourier=self.fourier,
            cast=self.cast,
            name=self.name,
            multiples=self.multiples,
            image=self.image,
        )


def grow(values: torch.Tensor, held: Box, wanted: Box) -> torch.Tensor:
    """Zeros around the pixels held, to fill a larger box."""
    first = values.ndim - held.ndim
    for number, (a, b, low, high) in enumerate(
        zip(held.start, held.stop, wanted.start, wanted.stop, strict=True)
    ):
        values = embed(values, first + number, a - low, high - b)
    return values


def register(module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    """Hold a tensor as a parameter if it is one, else as a buffer."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def support(kernel: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The part of a kernel ``(b, c, *taps)`` that is not zero, and its centre within that part.

    Used where a kernel was given on the whole image.
    """
    ndim = kernel.ndim - 2
    nonzero = (kernel != 0).flatten(0, 1).any(dim=0)
    slices, centre = [], []
    for axis in range(ndim):
        middle = kernel.shape[2 + axis] // 2
        others = [other for other in range(ndim) if other != axis]
        found = (nonzero.any(dim=others) if others else nonzero).nonzero().flatten().tolist()
        low, high = min([middle, *found]), max([middle, *found]) + 1
        slices.append(slice(low, high))
        centre.append(middle - low)
    return kernel[spatial_index(*slices)].contiguous(), tuple(centre)


def worth_fourier(taps: Sequence[int]) -> bool:
    """Whether a kernel is so long that Fourier transforms are the cheaper way, roughly."""
    return prod(taps) > 400


__all__ = ["LocalConvolution", "grow", "register", "support", "worth_fourier"]
