"""What a process takes: of a GPU by the allocator, of main memory as Linux counts it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

from shardinv.study.measurement import Memory

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """The most memory taken in the parts of a run that are looked at.

    Parameters
    ----------
    gpu
        Whether the current GPU's memory is meant; else main memory.
    """

    def __init__(self, gpu: bool = False) -> None:
        self._gpu = gpu
        if gpu:
            torch.cuda.empty_cache()
        else:
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
        self.look_away()
        self._before = self._peaks()
        self._most = self._before

    def look_away(self) -> None:
        """Forget the most that was taken since :meth:`look`: it belongs to no iteration."""
        if self._gpu:
            torch.cuda.reset_peak_memory_stats()
            return
        # A container may forbid it: then the peak of the set-up counts too.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def look(self) -> None:
        """Count the most that was taken since :meth:`look_away`."""
        self._most = tuple(
            max((v for v in pair if v is not None), default=None)
            for pair in zip(self._most, self._peaks(), strict=True)
        )

    @property
    def above(self) -> Memory:
        """The most bytes above what was there at first."""
        values = [
            None if most is None or before is None else max(0, most - before)
            for most, before in zip(self._most, self._before, strict=True)
        ]
        return Memory(allocated=values[0], reserved=values[1]) if self._gpu else Memory(values[0])

    def _peaks(self) -> tuple[int | None, ...]:
        if self._gpu:
            return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return (_status("VmHWM"),)


def _status(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(s.split()[1]) * 1024 for s in lines if s.startswith(f"{field}:")), None)
