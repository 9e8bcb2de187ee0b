"""What a tensor looks like, without its values: enough to make room for one that arrives."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from shardinv.geometry import Box


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of a tensor, in a form that is hashed, compared and sent as text."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return prod(self.shape) * self.dtype.itemsize

    def empty(self, device: torch.device) -> torch.Tensor:
        """An uninitialised tensor of this spec."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def __str__(self) -> str:
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}"


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous in memory, with no pending conjugation or sign: fit to be sent."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of a contiguous tensor's bytes.

    Messages are sent as bytes, so that complex, half and boolean values, and values of several
    types in one message, go the same way as float32 on every backend.
    """
    return tensor.reshape(-1).view(torch.uint8)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """A real view of a tensor, for sums, which no backend has for complex values."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def crop(tensor: torch.Tensor, box: Box, origin: Box | None = None) -> torch.Tensor:
    """A view of the pixels of a box.

    Parameters
    ----------
    tensor
        ``(..., *spatial)``: its last axes are those of the box.
    box
        The pixels wanted.
    origin
        The box that the tensor holds; by default one that starts at 0.
    """
    index: tuple[Any, ...] = (Ellipsis, *box.slices(origin))
    return tensor[index]
