"""What each rank holds in these tests; every rank can compute what the others hold."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from shardinv.exchange import Communicator

#: The types that may be sent; those of images first.
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return the random tensor that ``rank`` holds, the same whoever computes it."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 60, shape, generator=generator).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator).to(dtype)


def like_nccl(comm: Communicator) -> Communicator:
    """Return the group as if its backend had fast collectives of its own.

    Gloo has the same collectives, so that the code written for NCCL runs without a GPU.
    """
    return comm if comm.alone else replace(comm, backend="nccl")
