"""What a process takes: of a GPU by the allocator, of main memory as Linux counts it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def restart_peak(gpu: bool = False) -> int | None:
    """Give freed memory back and start the peak anew.

    Parameters
    ----------
    gpu
        Whether it is the current GPU's memory.

    Returns
    -------
    int or None
        Bytes taken now; None where the system doesn't say.
    """
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    # A container may forbid it: then the peak of the set-up counts too.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak(gpu: bool = False) -> int | None:
    """The most bytes taken since :func:`restart_peak`; None where the system doesn't say."""
    return torch.cuda.max_memory_allocated() if gpu else _status("VmHWM")


def _status(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(s.split()[1]) * 1024 for s in lines if s.startswith(f"{field}:")), None)
