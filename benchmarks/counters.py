"""What the kernel counts: memory of a process, bytes through the loopback interface.

Neither library is asked, so both are measured alike.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

STATUS = Path("/proc/self/status")
INTERFACES = Path("/proc/net/dev")


def memory(field: str) -> int:
    """A line of this process's status in bytes: ``VmRSS``, resident now, or ``VmHWM``, its peak."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no {field}; this benchmark needs Linux")


def restart_peak() -> int:
    """Give freed memory back, start the peak anew, and return the bytes resident now."""
    ctypes.CDLL(None).malloc_trim(0)
    # A container may forbid it: then the peak of the set-up counts too.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def loopback_bytes() -> int:
    """Bytes sent through the loopback interface by all processes since the machine started."""
    for line in INTERFACES.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise RuntimeError(f"{INTERFACES} has no loopback interface")
