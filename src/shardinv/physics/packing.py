"""Measurements of a stack as one real vector, for solvers that work on a single tensor."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from deepinv.utils.tensorlist import TensorList

from shardinv.exchange import TensorSpec
from shardinv.physics.measurements import EntrySpec, Measurement, entry_tensors


@dataclass(frozen=True)
class Packing:
    """Where each measurement of a full list lies in a vector ``(B, n)``.

    Complex values count as two real ones, so the vector's norm is the norm of the list.
    """

    entries: tuple[EntrySpec, ...]

    @classmethod
    def of(cls, y: TensorList) -> Packing:
        """The packing of a full list."""
        return cls(tuple(EntrySpec.of(entry) for entry in y.x))

    def pack(self, y: TensorList) -> torch.Tensor:
        """The vector of a list."""
        tensors = [tensor for entry in y.x for tensor in entry_tensors(entry)]
        real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
        return torch.cat([t.flatten(1) for t in real], dim=1)

    def unpack(self, vector: torch.Tensor) -> TensorList:
        """The list of a vector."""
        result = TensorList([])
        offset = 0
        for entry in self.entries:
            parts: list[torch.Tensor] = []
            for spec in entry.tensors:
                length = prod(spec.shape[1:]) * (2 if spec.dtype.is_complex else 1)
                parts.append(_shaped(vector[:, offset : offset + length], spec))
                offset += length
            measurement: Measurement = TensorList(parts) if entry.nested else parts[0]
            result.x.append(measurement)
        return result


def _shaped(values: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    if spec.dtype.is_complex:
        parts = values.reshape(*spec.shape, 2)
        values = torch.complex(parts[..., 0], parts[..., 1])
    return values.reshape(spec.shape).to(spec.dtype)
