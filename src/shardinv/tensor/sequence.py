"""Draws from a generator's own sequence: each rank goes through all of it and keeps its box.

A generator of the CPU gives one number after the other, so what a box gets depends on all values
before it. Every rank draws them, a piece at a time, and so the sharded tensor is the one that the
undistributed program would have drawn. It costs the time of drawing the whole, and no memory.
Counters (``counter``) cost each rank its box alone; they serve wherever no generator is given.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from math import prod

import torch

from shardinv.exchange import DisagreementError, publish
from shardinv.tensor.counter import Place
from shardinv.tensor.sharded import ShardedTensor

PIECE = 2**20
"""Values drawn at a time, a multiple of 16: torch draws normal numbers in groups of 16."""


def in_pieces(total: int) -> Iterator[tuple[int, int]]:
    """Where pieces of a sequence begin and end; none is shorter than 16 but a sequence that is.

    Torch draws fewer than 16 normal numbers in another way, and goes back over the last 16 where
    their number is not a multiple.
    """
    first = 0
    while first < total:
        last = total if total - first < PIECE + 16 else first + PIECE
        yield first, last
        first = last


def agree_on_state(name: str, x: ShardedTensor, generator: torch.Generator) -> None:
    """Check that all ranks draw the same from generators in the same state.

    Raises
    ------
    DisagreementError
        If they do not.
    """
    state = zlib.crc32(generator.get_state().numpy().tobytes())
    told = publish(
        x.sharding.comm, f"a draw by {name} from a generator", (state, tuple(x.shape), str(x.dtype))
    )
    if any(other != told[0] for other in told):
        raise DisagreementError(
            f"{name} of a sharded tensor draws from the generator given, whose state, or what is "
            f"drawn, differs between ranks: {told}. Seed it with the same number on every rank and "
            "draw from it on all of them, or give none"
        )


def keep_part(part: torch.Tensor, place: Place, draw: Callable[[torch.Tensor], object]) -> None:
    """Fill a part of a tensor with its values of a sequence that is drawn for the whole.

    Parameters
    ----------
    part
        Contiguous; filled in place.
    place
        Where it lies in the whole.
    draw
        Fills a flat tensor with the next values of the sequence.
    """
    shape = tuple(part.shape)
    flat = part.view(-1)
    strides = torch.tensor([prod(place.shape[axis + 1 :]) for axis in range(len(shape))])
    starts = torch.tensor(place.start)
    for first, last in in_pieces(prod(place.shape)):
        buffer = torch.empty(last - first, dtype=part.dtype)
        draw(buffer)
        begin, end = (values_before(position, place, shape) for position in (first, last))
        if begin == end:
            continue
        indices = torch.unravel_index(torch.arange(begin, end), shape)
        coordinates = torch.stack(indices, -1) + starts
        flat[begin:end] = buffer[(coordinates * strides).sum(-1) - first]


def values_before(position: int, place: Place, shape: tuple[int, ...]) -> int:
    """How many values of a part lie before a position of the whole, row-major.

    Examples
    --------
    >>> values_before(6, Place((3, 4), (0, 1)), (3, 2))
    3
    """
    if position >= prod(place.shape):
        return prod(shape)
    count = 0
    for axis, (start, size) in enumerate(zip(place.start, shape, strict=True)):
        digit, position = divmod(position, prod(place.shape[axis + 1 :]))
        inside = min(max(digit - start, 0), size)
        count += inside * prod(shape[axis + 1 :])
        if not start <= digit < start + size:
            break
    return count
