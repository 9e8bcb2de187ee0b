"""Operators that act on each pixel by itself: masks, and mixtures of channels."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any

import torch

from shardinv.geometry import Box, Partition
from shardinv.physics.space.convolution import grow, register
from shardinv.physics.space.local import Kernels, LocalOperator, spatial_index


class PointwiseOperator(LocalOperator, ABC):
    """An operator whose output pixel depends on the same pixel of the image alone."""

    def periodic(self, ndim: int) -> tuple[bool, ...]:
        """No axis: nothing is looked up past the border."""
        return (False,) * ndim

    def output_shape(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The image's."""
        return tuple(spatial)

    def input_shape(self, output: Sequence[int]) -> tuple[int, ...]:
        """The output's."""
        return tuple(output)

    def output_partition(self, partition: Partition) -> Partition:
        """The image's."""
        self.output_shape(partition.shape)
        return partition

    def input_partition(self, output: Partition, spatial: Sequence[int]) -> Partition:
        """The output's."""
        return output

    def window(self, out_box: Box, spatial: Sequence[int]) -> Box:
        """The box itself."""
        return out_box


class LocalMultiplication(PointwiseOperator):
    r"""Each pixel times its own number: a mask, a gain, the identity.

    Parameters
    ----------
    mask
        Broadcasts against ``(B, C, *spatial)``; axes of length 1 are the same for all pixels.
    masks_noise
        Whether noise is multiplied as well, as by ``deepinv.physics.Inpainting``.
    held
        The pixels that the mask covers, where it has been cut; the whole image by default.

    Notes
    -----
    A mask that needs a gradient is held whole, and its gradient is whole.
    """

    def __init__(
        self, mask: torch.Tensor, *, masks_noise: bool = False, held: Box | None = None
    ) -> None:
        super().__init__()
        register(self, "mask", mask)
        self.masks_noise = masks_noise
        self.held = held

    mask: torch.Tensor

    @property
    def kernels(self) -> dict[str, torch.Tensor]:
        """The mask, if it needs a gradient."""
        if not self.mask.requires_grad:
            return {}
        if self.held is not None:
            raise ValueError(
                "this mask was cut to the boxes of an image before it needed a gradient: give the "
                "whole one anew, on every rank (physics.update_parameters(mask=...))"
            )
        return {"mask": self.mask}

    @property
    def lead(self) -> tuple[int, int]:
        """The mask's batch and channels."""
        return tuple(self.mask.shape[:2]) if self.mask.ndim > 3 else (1, 1)  # type: ignore[return-value]

    def output_shape(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The image's, which must be the mask's."""
        own = self.mask.shape[-len(spatial) :] if self.mask.ndim else ()
        whole = own if self.held is None else tuple(spatial)
        for mine, n in zip(reversed(whole), reversed(tuple(spatial)), strict=False):
            if mine not in (1, n):
                raise ValueError(
                    f"the mask of shape {tuple(self.mask.shape)} does not go with an image of "
                    f"{tuple(spatial)} pixels"
                )
        return tuple(spatial)

    def _cut(self, mask: torch.Tensor, box: Box, held: Box | None) -> torch.Tensor:
        """The mask on a box. Axes along which it is the same everywhere stay as they are."""
        origin = Box((0,) * box.ndim, box.stop) if held is None else held
        for back, (a, b, start) in enumerate(
            zip(reversed(box.start), reversed(box.stop), reversed(origin.start), strict=True), 1
        ):
            if back <= mask.ndim and mask.shape[-back] != 1:
                mask = mask.narrow(-back, a - start, b - a)
        return mask

    def _multiply(
        self, values: torch.Tensor, box: Box, kernels: Kernels | None, adjoint: bool
    ) -> torch.Tensor:
        mask = self._cut((kernels or {}).get("mask", self.mask), box, self.held)
        if adjoint and mask.is_complex():
            mask = mask.conj()
        result = values * mask
        if result.shape != values.shape:
            raise ValueError(
                f"a mask of shape {tuple(self.mask.shape)} does not go with an image of "
                f"{values.shape[0]} x {values.shape[1]} batch and channels"
            )
        return result

    def evaluate(
        self,
        values: torch.Tensor,
        window: Box,
        out_box: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Multiply the box."""
        return self._multiply(crop_to(values, window, out_box), out_box, kernels, adjoint=False)

    def transpose(
        self,
        values: torch.Tensor,
        out_box: Box,
        window: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Multiply the box, by the conjugate where the mask is complex."""
        return fill(self._multiply(values, out_box, kernels, adjoint=True), out_box, window)

    @property
    def has_maps(self) -> bool:
        """Where the mask differs between pixels and may be cut."""
        varies = self.mask.ndim > 2 and any(n != 1 for n in self.mask.shape[2:])
        return varies and not self.mask.requires_grad

    def restrict(self, out_box: Box, spatial: Sequence[int]) -> LocalOperator:
        """Keep the mask on the box."""
        if self.mask.requires_grad:
            return self
        cut = self._cut(self.mask, out_box, self.held)
        # A copy: a view would keep the whole mask in memory.
        cut = cut if cut is self.mask else cut.clone()
        return LocalMultiplication(cut, masks_noise=self.masks_noise, held=out_box)

    def update(self, **values: Any) -> LocalOperator:
        """Another mask, of the whole image."""
        mask = values.get("mask")
        if not isinstance(mask, torch.Tensor):
            return self
        return LocalMultiplication(mask.to(self.mask), masks_noise=self.masks_noise)

    def after_noise(
        self, values: torch.Tensor, out_box: Box, kernels: Kernels | None = None
    ) -> torch.Tensor:
        """The noisy measurement times the mask, where the operator masks its noise."""
        return self._multiply(values, out_box, kernels, False) if self.masks_noise else values


class LocalMixture(PointwiseOperator):
    r"""A matrix that mixes the channels of each pixel, :math:`y_o = \sum_c M_{oc} x_c`.

    Parameters
    ----------
    matrix
        ``(outputs, channels)``.
    name
        Name of the matrix's transpose as a parameter of the operator, if it can be updated.
    """

    matrix: torch.Tensor

    def __init__(self, matrix: torch.Tensor, name: str | None = None) -> None:
        super().__init__()
        register(self, "matrix", matrix)
        self.name = name

    @property
    def kernels(self) -> dict[str, torch.Tensor]:
        """The matrix."""
        return {"matrix": self.matrix}

    @property
    def lead(self) -> tuple[int, int]:
        """The channels that it mixes."""
        return 1, self.matrix.shape[1]

    def output_channels(self, channels: int) -> int:
        """The matrix's rows."""
        return int(self.matrix.shape[0])

    def _mix(self, values: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        if values.shape[1] != matrix.shape[1]:
            raise ValueError(f"{matrix.shape[1]} channels are needed, got {values.shape[1]}")
        if values.dtype != matrix.dtype:
            raise ValueError(f"the image is {values.dtype}, the matrix {matrix.dtype}")
        return torch.einsum("oc,bc...->bo...", matrix, values)

    def evaluate(
        self,
        values: torch.Tensor,
        window: Box,
        out_box: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Mix the box's channels."""
        matrix = (kernels or self.kernels)["matrix"]
        return self._mix(crop_to(values, window, out_box), matrix)

    def transpose(
        self,
        values: torch.Tensor,
        out_box: Box,
        window: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Mix by the conjugate transpose."""
        matrix = (kernels or self.kernels)["matrix"]
        return fill(self._mix(values, matrix.mH), out_box, window)

    def update(self, **values: Any) -> LocalOperator:
        """Another matrix, given as its transpose."""
        transposed = None if self.name is None else values.get(self.name)
        if not isinstance(transposed, torch.Tensor):
            return self
        return LocalMixture(transposed.mT.to(self.matrix), self.name)


def crop_to(values: torch.Tensor, window: Box, box: Box) -> torch.Tensor:
    """A view of a box of a window; no pixel where the box has none, wherever it lies."""
    if box.is_empty:
        return values.flatten(-box.ndim)[..., :0].reshape(*values.shape[: -box.ndim], *box.shape)
    return values[spatial_index(*box.slices(window))]


def fill(values: torch.Tensor, box: Box, window: Box) -> torch.Tensor:
    """A box's pixels with zeros around them; zeros alone where the box has no pixel."""
    if box.is_empty:
        zeros = values.flatten(-box.ndim).sum(-1)
        return zeros[spatial_index(*[None] * box.ndim)].expand(*zeros.shape, *window.shape)
    return grow(values, box, window)
