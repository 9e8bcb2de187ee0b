"""The GPUs of the ranks: one each, and free."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardinv.denoise.memory import show_memory
from shardinv.study.checks.finding import Finding, by_rank, ranks

_FREE = 0.8
"""Part of a GPU's memory that should be free before a run."""
_SHARED_MEMORY = 2**28


@dataclass(frozen=True)
class Gpu:
    """What a rank computes on.

    Parameters
    ----------
    host
        Number of its host.
    visible
        GPUs that it sees.
    name, identity
        Of the one that it uses; None on a CPU.
    free, total
        Bytes of its memory, before the run.
    shared_memory
        Bytes free in the host's /dev/shm, through which NCCL moves between processes; None where
        there is none.
    """

    host: int
    visible: int
    name: str | None = None
    identity: str | None = None
    free: int = 0
    total: int = 0
    shared_memory: int | None = None

    @classmethod
    def here(cls, host: int, device: torch.device) -> Gpu:
        """Of this rank."""
        visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device.type != "cuda":
            return cls(host, visible)
        properties = torch.cuda.get_device_properties(device)
        identity = str(getattr(properties, "uuid", device))
        free, total = torch.cuda.mem_get_info(device)
        # What this process holds is no other program's.
        free += torch.cuda.memory_reserved(device)
        shared = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None
        return cls(host, visible, properties.name, identity, free, total, shared)


def gpus(told: Sequence[Gpu], backend: str | None) -> Finding:
    """Whether every rank has a GPU of its own, with room on it."""
    name = "machine: GPUs"
    figures = {
        "visible": [each.visible for each in told],
        "names": [each.name for each in told],
        "free_bytes": [each.free for each in told],
        "total_bytes": [each.total for each in told],
    }
    if all(each.name is None for each in told):
        visible = max(each.visible for each in told)
        message = "none asked for, and none there"
        if visible:
            message = f"none asked for, though a rank sees {visible}; device: gpu uses them"
        return Finding(name, "ok", figures, message)
    kinds = sorted({str(each.name) for each in told})
    message = f"{', '.join(kinds)}; {by_rank([each.free for each in told], show_memory)} free"
    owners: dict[tuple[int, str | None], list[int]] = {}
    for rank, each in enumerate(told):
        owners.setdefault((each.host, each.identity), []).append(rank)
    crowd = next((same for same in owners.values() if len(same) > 1), None)
    if crowd is not None:
        one = told[crowd[0]]
        words = f"; {ranks(crowd)} share one GPU, host {one.host} shows {one.visible}"
        remedy = (
            "one rank for each GPU: fewer ranks on this host, or let each process see all of its "
            "GPUs (CUDA_VISIBLE_DEVICES, srun --gpus-per-node)"
        )
        return Finding(name, "failed", figures, message + words, remedy)
    if len(kinds) > 1:
        remedy = "ranks on GPUs of one kind: the slowest sets the pace"
        return Finding(name, "warning", figures, message, remedy)
    if len(told) > 1 and backend != "nccl":
        remedy = (
            "start with a GPU for each rank, so that NCCL is chosen; gloo copies through memory"
        )
        return Finding(name, "warning", figures, f"{message}; messages go by {backend}", remedy)
    full = [rank for rank, each in enumerate(told) if each.free < _FREE * each.total]
    if full:
        remedy = "end the other programs on these GPUs (nvidia-smi shows them)"
        return Finding(name, "warning", figures, f"{message}; {ranks(full)} not alone", remedy)
    short = [
        rank
        for rank, each in enumerate(told)
        if each.shared_memory is not None and each.shared_memory < _SHARED_MEMORY
    ]
    if short and len(told) > 1:
        remedy = "more shared memory for the container: --shm-size=1g or --ipc=host"
        words = f"; little free in /dev/shm of {ranks(short)}"
        return Finding(name, "warning", figures, message + words, remedy)
    return Finding(name, "ok", figures, message)
