"""What a network keeps for its backward pass, and how much memory there is for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_UNITS["ti"] = 2**40

SHARE = 0.5
"""Part of the memory that is left which activations may take, where no budget is given."""


def parse_memory(given: int | float | str | None) -> int | None:
    """Bytes of a budget: a number of them, or with a unit, ``"8GB"``, ``"512MiB"``.

    Raises
    ------
    ValueError
        If it is no such thing, or not above 0.
    """
    if given is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?)b?\s*", str(given).lower())
    try:
        number = float(found[1]) * _UNITS[found[2]] if found else 0.0
    except (ValueError, KeyError):
        number = 0.0
    if number < 1:
        raise ValueError(
            f"memory must be a number of bytes above 0, or with a unit as in '8GB' or '512MiB', "
            f"got {given!r}"
        )
    return int(number)


def show_memory(count: float) -> str:
    """A number of bytes for people: ``1.23 GB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def memory_left(device: torch.device) -> int:
    """Bytes that this process may still take on its device.

    On a GPU what is free, and what torch has reserved and doesn't use. On a CPU this process's
    share of what is free on the machine or in its control group, within the limit of the process.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    neighbours = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    limits = [left // neighbours for left in (_machine(), _control_group()) if left is not None]
    own = _process()
    if own is not None:
        limits.append(own)
    return min(limits, default=2**33)


def _machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(s.split()[1]) * 1024 for s in lines if s.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _control_group() -> int | None:
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        return None if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return None


def _process() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    # As ``ulimit -v`` and ``ulimit -d`` count: all that is mapped, and data with the stack.
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    left = [
        most - int(used) * page
        for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5]))
        if (most := resource.getrlimit(limit)[0]) != resource.RLIM_INFINITY
    ]
    return max(0, min(left)) if left else None


class SavedBytes:
    """Counts what autograd keeps of the operations inside: ``with SavedBytes(weights) as saved``.

    A tensor kept twice counts once. Nothing is copied or dropped.

    Parameters
    ----------
    others
        Tensors that are there anyway: weights, inputs.
    """

    def __init__(self, others: Iterable[torch.Tensor] = ()) -> None:
        self._seen = {_storage(t) for t in others if type(t) in _PLAIN}
        self._hooks = saved_tensors_hooks(self._keep, lambda kept: kept)
        self.count = 0

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) in _PLAIN:
            place = _storage(tensor)
            if place not in self._seen:
                self._seen.add(place)
                self.count += tensor.untyped_storage().nbytes()
        return tensor

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def activation_bytes(
    call: Callable[..., torch.Tensor], others: Iterable[torch.Tensor], *inputs: Any, **named: Any
) -> int:
    """Bytes that a call of a network keeps for its backward pass. It is called for that.

    Parameters
    ----------
    call
        The network.
    others
        Tensors not to count: its weights.
    *inputs, **named
        What it is called with; one of them or a weight must need a gradient.
    """
    with torch.random.fork_rng(), SavedBytes(others) as saved:
        call(*inputs, **named)
    return saved.count
