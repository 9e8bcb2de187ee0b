"""The transpose of a local operator, as a local operator: up-sampling from down-sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardinv.geometry import Box, Partition
from shardinv.physics.space.convolution import LocalConvolution, grow
from shardinv.physics.space.local import Kernels, LocalOperator, cut_axes
from shardinv.physics.space.pointwise import crop_to, fill


class LocalSpreading(LocalOperator):
    """The adjoint of a convolution with decimation: zeros between pixels, then a convolution.

    Parameters
    ----------
    convolution
        What it is the adjoint of; not one with valid padding.
    output
        Spatial shape of the output, where it isn't the image's times the stride.
    """

    def __init__(self, convolution: LocalConvolution, output: Sequence[int] | None = None) -> None:
        super().__init__()
        if convolution.padding == "valid":
            raise ValueError("a spreading with valid padding is not supported")
        self.convolution = convolution
        self.output = None if output is None else tuple(output)

    @property
    def kernels(self) -> dict[str, torch.Tensor]:
        """The convolution's."""
        return self.convolution.kernels

    @property
    def lead(self) -> tuple[int, int]:
        """The convolution's."""
        return self.convolution.lead

    @property
    def trial_shape(self) -> tuple[int, ...]:
        """Somewhat more than twice the kernel, in pixels of the output."""
        axes = self.convolution.axes
        return tuple(-(-(2 * axis.taps + 3) // axis.stride) for axis in axes)

    def periodic(self, ndim: int) -> tuple[bool, ...]:
        """The convolution's."""
        return self.convolution.periodic(ndim)

    def output_shape(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The image's times the stride."""
        output = self.output or self.convolution.input_shape(spatial)
        if self.convolution.output_shape(output) != tuple(spatial):
            raise ValueError(
                f"an image of {self.convolution.output_shape(output)} pixels is needed, got "
                f"{tuple(spatial)}"
            )
        wraps = self.convolution.periodic(len(output))
        for wrap, n, s in zip(wraps, output, self.convolution.stride, strict=True):
            if wrap and n % s:
                raise ValueError(f"an axis of {n} pixels that wraps must be a multiple of {s}")
        return output

    def input_shape(self, output: Sequence[int]) -> tuple[int, ...]:
        """The output's over the stride."""
        return self.convolution.output_shape(output)

    def output_partition(self, partition: Partition) -> Partition:
        """The boxes times the stride."""
        output = self.output_shape(partition.shape)
        return self.convolution.input_partition(partition, output)

    def input_partition(self, output: Partition, spatial: Sequence[int]) -> Partition:
        """The boxes over the stride."""
        axes = self.convolution.axes
        return cut_axes(
            output, spatial, lambda axis, cut: axes[axis].follow(cut, output.shape[axis])
        )

    def window(self, out_box: Box, spatial: Sequence[int]) -> Box:
        """The pixels whose kernels meet the box."""
        output = self.output_shape(spatial)
        if out_box.is_empty:
            return Box((0,) * out_box.ndim, (0,) * out_box.ndim)
        spans = [
            axis.spreads(a, b, n)
            for axis, a, b, n in zip(
                self.convolution.axes, out_box.start, out_box.stop, output, strict=True
            )
        ]
        return Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))

    def evaluate(
        self,
        values: torch.Tensor,
        window: Box,
        out_box: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Spread the window, and keep the box."""
        output = self.output_shape(spatial)
        needed = self.window(out_box, spatial)
        values = crop_to(values, window, needed)
        reach = _hull(self.convolution.window(needed, output), out_box)
        spreaded = self.convolution.transpose(values, needed, reach, output, kernels)
        return crop_to(spreaded, reach, out_box)

    def transpose(
        self,
        values: torch.Tensor,
        out_box: Box,
        window: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Convolve the box with zeros around it."""
        output = self.output_shape(spatial)
        needed = self.window(out_box, spatial)
        reach = _hull(self.convolution.window(needed, output), out_box)
        embedded = fill(values, out_box, reach)
        result = self.convolution.evaluate(embedded, reach, needed, output, kernels)
        return fill(result, needed, window) if needed.is_empty else grow(result, needed, window)

    def update(self, **values: Any) -> LocalOperator:
        """Another kernel."""
        changed = self.convolution.update(**values)
        assert isinstance(changed, LocalConvolution)
        return LocalSpreading(changed, self.output)


def _hull(first: Box, second: Box) -> Box:
    """The smallest box around both; an empty one counts for nothing."""
    if first.is_empty or second.is_empty:
        return second if first.is_empty else first
    return Box(
        tuple(min(a, b) for a, b in zip(first.start, second.start, strict=True)),
        tuple(max(a, b) for a, b in zip(first.stop, second.stop, strict=True)),
    )
