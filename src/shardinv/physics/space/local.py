"""The local operator: what is needed of an operator for it to run on boxes of an image.

It maps plain tensors that hold a window of the image to plain tensors that hold a box of the
output, and back. Ranks, messages and sharded tensors are elsewhere (``linear``, ``stack``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardinv.geometry import Box, Partition

Kernels = Mapping[str, torch.Tensor]
"""Tensors of an operator that every box needs whole, by name."""


class LocalOperator(nn.Module, ABC):
    r"""A linear operator whose output pixel depends on a neighbourhood of pixels.

    Given the pixels of a window of the image it computes a box of the output, and it is exactly the
    operator: :math:`A` is the boxes put together, :math:`A^\top` the sum of the windows. Its last
    axes are the spatial ones, ``(B, C, *spatial)``.

    Its parameters and buffers are of two sorts. *Kernels* are needed whole by every box.
    *Maps* lie on pixels: :meth:`restrict` keeps of them what a box needs.
    """

    @property
    def kernels(self) -> dict[str, torch.Tensor]:
        """What every box needs whole, by the names that :meth:`evaluate` takes."""
        return {}

    @property
    def lead(self) -> tuple[int, int]:
        """Batch and channels of an image that the operator can be tried on."""
        return 1, 1

    @property
    def trial_shape(self) -> tuple[int, ...]:
        """Spatial shape of a small image that the operator can be tried on."""
        return 9, 8

    @abstractmethod
    def periodic(self, ndim: int) -> tuple[bool, ...]:
        """Whether each of the image's ``ndim`` spatial axes wraps around."""

    @abstractmethod
    def output_shape(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Spatial shape of the output for an image of this spatial shape.

        Raises
        ------
        ValueError
            If the operator takes no image of this shape.
        """

    @abstractmethod
    def input_shape(self, output: Sequence[int]) -> tuple[int, ...]:
        """Spatial shape of the image that an output came from; where several fit, the usual one."""

    @abstractmethod
    def output_partition(self, partition: Partition) -> Partition:
        """The boxes of the output that go with the boxes of an image."""

    @abstractmethod
    def input_partition(self, output: Partition, spatial: Sequence[int]) -> Partition:
        """Boxes of an image that :meth:`output_partition` turns into these."""

    @abstractmethod
    def window(self, out_box: Box, spatial: Sequence[int]) -> Box:
        """The pixels that a box of the output draws on.

        Parameters
        ----------
        out_box
            Pixels of the output.
        spatial
            Spatial shape of the image.

        Returns
        -------
        Box
            Within the image, except along periodic axes, where coordinates go on past the border.
            Empty for an empty box.
        """

    @abstractmethod
    def evaluate(
        self,
        values: torch.Tensor,
        window: Box,
        out_box: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """A box of the output.

        Parameters
        ----------
        values
            The image's pixels in ``window``, ``(B, C, *window.shape)``.
        window
            At least :meth:`window` of the box.
        out_box
            Pixels of the output wanted; perhaps none. The result is tied to ``values`` and to the
            kernels for autograd then as well.
        spatial
            Spatial shape of the image.
        kernels
            To be used instead of :attr:`kernels`, under the same names.
        """

    @abstractmethod
    def transpose(
        self,
        values: torch.Tensor,
        out_box: Box,
        window: Box,
        spatial: Sequence[int],
        kernels: Kernels | None = None,
    ) -> torch.Tensor:
        """The exact adjoint of :meth:`evaluate`: what a box of the output gives to each pixel.

        Parameters
        ----------
        values
            The output's pixels in ``out_box``, ``(B, C', *out_box.shape)``.
        out_box, window, spatial, kernels
            As for :meth:`evaluate`.

        Returns
        -------
        torch.Tensor
            ``(B, C, *window.shape)``.
        """

    @property
    def has_maps(self) -> bool:
        """Whether it holds maps, of the whole image or cut."""
        return False

    def output_channels(self, channels: int) -> int:
        """Channels of the output for an image of so many."""
        return channels

    def restrict(self, out_box: Box, spatial: Sequence[int]) -> LocalOperator:
        """The operator for one box: of its maps it holds only what that box needs."""
        return self

    def update(self, **values: Any) -> LocalOperator:
        """The operator with other parameters, by the names that DeepInverse's operator takes.

        Names that it does not know are left alone, as by ``Physics.update_parameters``.
        """
        return self

    def after_noise(
        self, values: torch.Tensor, out_box: Box, kernels: Kernels | None = None
    ) -> torch.Tensor:
        """What the operator does to a noisy measurement; nothing, for most."""
        return values


@dataclass(frozen=True)
class Chain:
    """Local operators applied one after the other, each with an exchange of its own.

    Parameters
    ----------
    stages
        The first is applied first.
    """

    stages: tuple[LocalOperator, ...]

    @classmethod
    def of(cls, parts: Sequence[LocalOperator | Chain]) -> Chain:
        """One chain of operators and chains."""
        stages: list[LocalOperator] = []
        for part in parts:
            stages.extend(part.stages if isinstance(part, Chain) else [part])
        if not stages:
            raise ValueError("a chain needs at least one operator")
        return cls(tuple(stages))

    def partitions(self, image: Partition) -> tuple[Partition, ...]:
        """The boxes of the image, of what lies between the stages, and of the output."""
        found = [image]
        for stage in self.stages:
            found.append(stage.output_partition(found[-1]))
        return tuple(found)

    def output_shape(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Spatial shape of the output for an image of this spatial shape."""
        shape = tuple(spatial)
        for stage in self.stages:
            shape = stage.output_shape(shape)
        return shape

    def input_shape(self, output: Sequence[int]) -> tuple[int, ...]:
        """Spatial shape of the image that an output came from; where several fit, the usual one."""
        shape = tuple(output)
        for stage in reversed(self.stages):
            shape = stage.input_shape(shape)
        return shape

    def input_partition(self, output: Partition, spatial: Sequence[int]) -> Partition:
        """Boxes of an image whose output lies in these boxes."""
        shapes = [tuple(spatial)]
        for stage in self.stages[:-1]:
            shapes.append(stage.output_shape(shapes[-1]))
        for stage, shape in zip(reversed(self.stages), reversed(shapes), strict=True):
            output = stage.input_partition(output, shape)
        return output

    @property
    def lead(self) -> tuple[int, int]:
        """Batch and channels of an image that the chain can be tried on."""
        batch = max(stage.lead[0] for stage in self.stages)
        return batch, self.stages[0].lead[1]


def cut_axes(partition: Partition, shape: Sequence[int], cut: Any) -> Partition:
    """Another image's partition, whose cuts on each axis are ``cut(axis, position)``.

    ``cut`` must never decrease, and take the ends of an axis to the ends of the other's: then every
    pixel is in exactly one box again.
    """
    boxes = tuple(
        Box(
            tuple(cut(axis, position) for axis, position in enumerate(box.start)),
            tuple(cut(axis, position) for axis, position in enumerate(box.stop)),
        )
        for box in partition.boxes
    )
    return Partition(tuple(shape), boxes)


def spatial_index(*index: slice | None) -> tuple[Any, ...]:
    """An index of the last axes: slices to crop, Nones to add axes."""
    return (Ellipsis, *index)


def sum_over_nothing(values: torch.Tensor, ndim: int) -> torch.Tensor:
    """A zero for each of the first axes ``(B, C)``, tied to values that may have no pixel.

    An empty box must have the graph that others have, or autograd would not come by its exchange.
    """
    return values.flatten(-ndim)[..., :0].sum(dim=-1)
