"""What of a tensor a rank writes or reads: where it lies in the whole, and its values.

A sharded image is one tensor in a checkpoint, of which every rank has a part. Nothing here touches
a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch

from shardinv.exchange import Communicator
from shardinv.geometry import Box, Partition
from shardinv.tensor import ShardedTensor, Sharding

CHUNK_BYTES = 32 * 1024 * 1024
"""Largest part written as one: whoever reads a pixel holds all of its chunk for a moment."""


@dataclass(frozen=True)
class Part:
    """This rank's part of a tensor.

    Parameters
    ----------
    name
        Of the tensor, as the checkpoint knows it.
    shape
        Of the whole.
    offset
        Where the part begins, one number for each axis of the whole.
    values
        The part itself.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    values: torch.Tensor

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Offsets in the whole and shapes of chunks of at most ``limit`` bytes that make it up."""
        if self.values.numel() == 0:
            return
        shape = tuple(self.values.shape)
        lengths = _chunk_shape(shape, max(1, limit // self.values.element_size()))
        steps = [range(0, n, length) for n, length in zip(shape, lengths, strict=True)]
        for corner in product(*steps):
            sizes = tuple(
                min(length, n - a) for a, length, n in zip(corner, lengths, shape, strict=True)
            )
            yield tuple(o + a for o, a in zip(self.offset, corner, strict=True)), sizes

    def view(self, offset: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """The values of one of the chunks, as a view."""
        index = tuple(
            slice(a - o, a - o + n) for a, o, n in zip(offset, self.offset, sizes, strict=True)
        )
        return self.values[index]


def _chunk_shape(shape: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """A shape of at most ``limit`` values that is whole on the last axes, cut on the first."""
    lengths = list(shape)
    for axis, length in enumerate(shape):
        rest = prod(lengths[axis + 1 :])
        if rest * length <= limit:
            break
        lengths[axis] = max(1, min(length, limit // rest))
    return tuple(lengths)


def sharded_part(name: str, x: ShardedTensor) -> Part:
    """The part of a sharded tensor that this rank holds."""
    local = x.to_local().detach()
    if x.folded is not None:
        local = local.reshape(*local.shape[:-1], *x.folded, *x.box.shape)
    return placed_part(name, local, x.sharding, x.trailing)


def placed_part(name: str, local: torch.Tensor, sharding: Sharding, trailing: int) -> Part:
    """The part of an image that a rank's box is; ``local`` is ``(*lead, *box.shape, *trailing)``"""
    end = local.ndim - trailing
    lead = end - sharding.ndim
    shape = (*local.shape[:lead], *sharding.shape, *local.shape[end:])
    return Part(name, shape, (*(0,) * lead, *sharding.box.start, *(0,) * trailing), local)


def describe_sharding(x: ShardedTensor) -> dict[str, Any]:
    """How a tensor lies on the ranks, as JSON has it."""
    sharding = x.sharding
    return {
        "spatial": list(sharding.shape),
        "mesh": list(sharding.mesh),
        "order": None if sharding.order is None else list(sharding.order),
        "derived": sharding.derived,
        "boxes": [[list(box.start), list(box.stop)] for box in sharding.partition.boxes],
        "trailing": x.trailing,
        "folded": None if x.folded is None else list(x.folded),
    }


def saved_sharding(comm: Communicator, saved: dict[str, Any]) -> Sharding | None:
    """The sharding that a tensor was saved with; None where there were more or fewer ranks."""
    boxes = tuple(Box(tuple(start), tuple(stop)) for start, stop in saved["boxes"])
    if len(boxes) != comm.size:
        return None
    order = None if saved["order"] is None else tuple(saved["order"])
    partition = Partition(tuple(saved["spatial"]), boxes)
    return Sharding(comm, partition, tuple(saved["mesh"]), order, derived=saved["derived"])
