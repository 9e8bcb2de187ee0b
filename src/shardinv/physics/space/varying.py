"""Blur that varies over the image: a sum of convolutions, each weighted by a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardinv.geometry import Box, Partition
from shardinv.physics.space.axes import Axis, Padding
from shardinv.physics.space.convolution import LocalConvolution, grow, register
from shardinv.physics.space.local import Kernels, LocalOperator
from shardinv.physics.space.pointwise import crop_to, fill


class LocalVaryingBlur(LocalOperator):
    r"""A product-convolution, :math:`\sum_k h_k * (w_k x)` or :math:`\sum_k w_k (h_k * x)`.

    Parameters
    ----------
    filters
        The kernels :math:`h_k`, ``(b, c, K, h, w)``.
    multipliers
        The maps :math:`w_k`, ``(b, c, K, H, W)``: on the image, or on the output.
    padding
        How the image is continued.
    mask_first
        Whether the maps are applied before the convolutions.
    fourier
        Compute by Fourier transforms of the window.
    held
        The pixels that the maps cover, where they have been cut; all by default.

    Notes
    -----
    Maps that need a gradient are held whole.
    """

    filters: torch.Tensor
    multipliers: torch.Tensor

    def __init__(
        self,
        filters: torch.Tensor,
        multipliers: torch.Tensor,
        padding: Padding,
        *,
        mask_first: bool = True,
        fourier: bool = False,
        held: Box | None = None,
    ) -> None:
        super().__init__()
        if filters.ndim != 5 or multipliers.ndim != 5 or filters.shape[2] != multipliers.shape[2]:
            raise ValueError(
                "filters (b, c, K, h, w) and multipliers (b, c, K, H, W) are needed, got shapes "
                f"{tuple(filters.shape)} and {tuple(multipliers.shape)}"
            )
        register(self, "filters", filters)
        register(self, "multipliers", multipliers)
        self.padding, self.mask_first, self.fourier, self.held = padding, mask_first, fourier, held
        # Geometry and one term's convolution; its kernel is handed to it at each call.
        self._term = LocalConvolution(None, padding, ndim=2, fourier=fourier)
        self._term.axes = tuple(Axis(n, n // 2, 1, padding) for n in filters.shape[3:])

    @property
    def kernels(self) -> dict[str, torch.Tensor]:
        """The filters, and the maps if they need a gradient."""
        found = {"filters": self.filters}
        if self.multipliers.requires_grad:
            if self.held is not None:
                raise ValueError(
                    "these multipliers were cut to the boxes of an image before they needed a "
                    "gradient: give the whole ones anew, on every rank "
                    "(physics.update_parameters(multipliers=...))"
                )
            found["multipliers"] = self.multipliers
        return found

    @property
    def lead(self) -> tuple[int, int]:
        """Batch and channels of filters and maps together."""
        pairs = zip(self.filters.shape[:2], self.multipliers.shape[:2], strict=True)
        batch, channels = (max(pair) for pair in pairs)
        return batch, channels

    @property
    def trial_shape(self) -> tuple[int, ...]:
        """Somewhat more than twice the kernels."""
        return self._term.trial_shape

    def periodic(self, ndim: int) -> tuple[bool, ...]:
        """As the convolutions are."""
        return self._term.periodic(ndim)

    def output_shape(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The image's, less what valid padding loses."""
        output = self._term.output_shape(spatial)
        own = tuple(self.multipliers.shape[3:])
        wanted = tuple(spatial) if self.mask_first else output
        if self.held is None and own != wanted:
            raise ValueError(
                f"multipliers of {own} pixels do not go with an image of {tuple(spatial)}: they "
                f"should have {wanted}"
            )
        return output

    def input_shape(self, output: Sequence[int]) -> tuple[int, ...]:
        """The output's, and what valid padding loses."""
        return self._term.input_shape(output)

    def output_partition(self, partition: Partition) -> Partition:
        """As for one convolution."""
        self.output_shape(partition.shape)
        return self._term.output_partition(partition)

    def input_partition(self, output: Partition, spatial: Sequence[int]) -> Partition:
        """As for one convolution."""
        return self._term.input_partition(output, spatial)

    def window(self, out_box: Box, spatial: Sequence[int]) -> Box:
        """As for one convolution."""
        return self._term.window(out_box, spatial)

    def _maps(self, out_box: Box, spatial: Sequence[int], kernels: Kernels | None) -> torch.Tensor:
        """The maps on what they multiply: the box, or its window."""
        maps = (kernels or {}).get("multipliers", self.multipliers)
        wanted = self.window(out_box, spatial) if self.mask_first else out_box
        if self.held is not None:
            return crop_to(maps, self.held, wanted)
        if wanted in Box.whole(spatial):
            return crop_to(maps, Box.whole(maps.shape[3:]), wanted)
        for axis, (a, b, n) in enumerate(zip(wanted.start, wanted.stop, spatial, strict=True), 3):
            maps = maps.index_select(axis, torch.arange(a, b, device=maps.device) % n)
        return maps

    def _each(
        self, out_box: Box, spatial: Sequence[int], kernels: Kernels | None
    ) -> list[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        filters = (kernels or {}).get("filters", self.filters)
        maps = self._maps(out_box, spatial, kernels)
        return [({"filter": filters[:, :, k]}, maps[:, :, k]) for k in range(filters.shape[2])]

    def evaluate(
        self,
        values: torch.Tensor,
        window: Box,
        out_box: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Add up the terms of a box."""
        needed = self.window(out_box, spatial)
        values = crop_to(values, window, needed)
        total: torch.Tensor | None = None
        for kernel, weight in self._each(out_box, spatial, kernels):
            if self.mask_first:
                term = self._term.evaluate(weight * values, needed, out_box, spatial, kernel)
            else:
                term = weight * self._term.evaluate(values, needed, out_box, spatial, kernel)
            total = term if total is None else total + term
        assert total is not None
        return total

    def transpose(
        self,
        values: torch.Tensor,
        out_box: Box,
        window: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """Add up the terms' adjoints."""
        needed = self.window(out_box, spatial)
        total: torch.Tensor | None = None
        for kernel, weight in self._each(out_box, spatial, kernels):
            weight = weight.conj() if weight.is_complex() else weight
            if self.mask_first:
                term = weight * self._term.transpose(values, out_box, needed, spatial, kernel)
            else:
                term = self._term.transpose(weight * values, out_box, needed, spatial, kernel)
            total = term if total is None else total + term
        assert total is not None
        return fill(total, needed, window) if needed.is_empty else grow(total, needed, window)

    @property
    def has_maps(self) -> bool:
        """Unless they need a gradient, the multipliers."""
        return not self.multipliers.requires_grad

    def restrict(self, out_box: Box, spatial: Sequence[int]) -> LocalOperator:
        """Keep the maps on the box, or on its window."""
        if self.multipliers.requires_grad:
            return self
        held = self.window(out_box, spatial) if self.mask_first else out_box
        maps = self._maps(out_box, spatial, None).clone()
        return self._twin(self.filters, maps, held)

    def update(self, **values: Any) -> LocalOperator:
        """Other filters; other maps, of the whole image."""
        filters, maps = values.get("filters"), values.get("multipliers")
        if filters is None and maps is None:
            return self
        return self._twin(
            self.filters if filters is None else filters.to(self.filters),
            self.multipliers if maps is None else maps.to(self.multipliers),
            self.held if maps is None else None,
        )

    def _twin(
        self, filters: torch.Tensor, maps: torch.Tensor, held: Box | None
    ) -> LocalVaryingBlur:
        return LocalVaryingBlur(
            filters,
            maps,
            self.padding,
            mask_first=self.mask_first,
            fourier=self.fourier,
            held=held,
        )
