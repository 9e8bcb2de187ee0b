"""Message buffers that are used again: fresh host memory costs a page fault for every 4 KiB."""

from __future__ import annotations

from collections import OrderedDict

import torch

KEPT = 128 * 1024 * 1024
"""Bytes of idle buffers that a communicator keeps at most."""

_SMALL = 64 * 1024
"""Bytes below which a buffer is rounded up to whole KiB; allocation is cheap there."""


class BufferPool:
    """Lends flat buffers of bytes, and keeps those that come back, within a bound.

    A buffer that is lent is not in the pool, so nothing else can write to it while a message is
    pending; one that never comes back (an operation failed) is freed like any tensor. Buffers on a
    GPU are not kept: torch's allocator reuses its memory by itself, in the order of the streams.

    Parameters
    ----------
    limit
        Bytes kept at most. The sizes that were not used for longest go first.
    """

    def __init__(self, limit: int = KEPT) -> None:
        self.limit = limit
        self.kept = 0
        self._idle: OrderedDict[int, list[torch.Tensor]] = OrderedDict()

    def take(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """A buffer of at least ``nbytes`` bytes (uint8), not initialised."""
        size = _rounded(nbytes)
        if device.type == "cpu":
            idle = self._idle.get(size)
            if idle:
                self._idle.move_to_end(size)
                self.kept -= size
                return idle.pop()
        return torch.empty(size, dtype=torch.uint8, device=device)

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back. No message may be pending on it, and the caller must let go of it."""
        size = buffer.numel()
        if buffer.device.type != "cpu" or size > self.limit:
            return
        self._idle.setdefault(size, []).append(buffer)
        self._idle.move_to_end(size)
        self.kept += size
        while self.kept > self.limit:
            oldest, idle = next(iter(self._idle.items()))
            if idle:
                idle.pop()
                self.kept -= oldest
            if not idle:
                del self._idle[oldest]


def _rounded(nbytes: int) -> int:
    """Up to an eighth more, so that messages of nearly the same size share buffers."""
    unit = 1024 if nbytes < _SMALL else 1 << (nbytes.bit_length() - 4)
    return max(1, -(-nbytes // unit)) * unit
