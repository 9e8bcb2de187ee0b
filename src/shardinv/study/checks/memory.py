"""The memory that the ranks take, against what their hosts and devices have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from shardinv.denoise.memory import show_memory
from shardinv.study.checks.finding import Finding

_TIGHT, _FULL = 0.8, 0.95


@dataclass(frozen=True)
class Memory:
    """Of one rank, in bytes.

    Parameters
    ----------
    host
        Number of its host.
    resident
        The most main memory that the process took; None where the system doesn't say.
    installed
        What the host has, or its control group may take.
    reserved, on_device
        The most that torch took of the GPU, and what the GPU has; None on a CPU.
    """

    host: int
    resident: int | None
    installed: int | None
    reserved: int | None = None
    on_device: int | None = None

    @classmethod
    def here(cls, host: int, device: torch.device) -> Memory:
        """Of this process so far."""
        reserved = on_device = None
        if device.type == "cuda":
            reserved = torch.cuda.max_memory_reserved(device)
            on_device = torch.cuda.mem_get_info(device)[1]
        return cls(host, _most_resident(), _installed(), reserved, on_device)


def memory(told: Sequence[Memory], task: str = "reconstruct") -> Finding:
    """Whether there is room: on each GPU, and for all ranks of a host in its main memory.

    Parameters
    ----------
    told
        Of each rank, after some iterations.
    task
        Of the point: training takes more than the reconstruction that was measured.
    """
    name = "machine: memory"
    shares: list[tuple[float, str]] = []
    for rank, each in enumerate(told):
        if each.reserved is not None and each.on_device:
            share = each.reserved / each.on_device
            words = f"{show_memory(each.reserved)} of the GPU's {show_memory(each.on_device)}"
            shares.append((share, f"rank {rank} took {words}"))
    hosts = sorted({each.host for each in told})
    for host in hosts:
        here = [each for each in told if each.host == host]
        taken = [each.resident for each in here if each.resident is not None]
        installed = here[0].installed
        if taken and installed:
            whose = f"host {host}'s" if len(hosts) > 1 else "the host's"
            who = f"{len(here)} ranks together" if len(here) > 1 else "the rank"
            words = f"{who} took {show_memory(sum(taken))} of {whose} {show_memory(installed)}"
            shares.append((sum(taken) / installed, words))
    figures = {
        "resident_bytes": [each.resident for each in told],
        "installed_bytes": [each.installed for each in told],
        "gpu_reserved_bytes": [each.reserved for each in told],
        "gpu_bytes": [each.on_device for each in told],
    }
    if not shares:
        return Finding(name, "ok", figures, "the system does not say")
    share, words = max(shares)
    message = f"{words} ({share:.0%}), libraries included"
    if task == "train":
        message += "; of the reconstruction: training takes more"
    if share <= _TIGHT:
        return Finding(name, "ok", figures, message)
    remedy = "layout: sharded, a smaller tile or batch, more ranks on other hosts"
    if task == "train":
        remedy += ", checkpoint: always"
    return Finding(name, "failed" if share > _FULL else "warning", figures, message, remedy)


def _most_resident() -> int | None:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(s.split()[1]) * 1024 for s in lines if s.startswith("VmHWM:"))
    return None


def _installed() -> int | None:
    known = []
    with suppress(OSError, ValueError, AttributeError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(known, default=None)
