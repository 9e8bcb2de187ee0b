"""Threads of the ranks against the cores of their hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shardinv.study.checks.finding import Finding

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Threads:
    """Of one rank.

    Parameters
    ----------
    host
        Number of its host.
    threads
        That it computes with.
    cores
        The numbers of those that it may use.
    quota
        How many cores' time its control group gets; None without a limit.
    """

    host: int
    threads: int
    cores: tuple[int, ...]
    quota: float | None = None

    @classmethod
    def here(cls, host: int) -> Threads:
        """Of this process."""
        return cls(host, torch.get_num_threads(), usable_cores(), _quota())


def usable_cores() -> tuple[int, ...]:
    """The numbers of the cores that this process may use."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:  # not on every system
        return tuple(range(os.cpu_count() or 1))


def threads(told: Sequence[Threads]) -> Finding:
    """Whether the ranks of each host have more threads than there are cores for them."""
    name = "machine: threads"
    crowded, spare, figures = [], [], []
    for host in sorted({each.host for each in told}):
        here = [each for each in told if each.host == host]
        total, available = sum(each.threads for each in here), _available(here)
        figures.append({"host": host, "ranks": len(here), "threads": total, "cores": available})
        if total > available:
            crowded.append((host, here, total, available))
        # A whole thread more for each rank would have a core.
        elif available >= total + len(here):
            spare.append((host, int(available // len(here))))
    hosts = len(figures)
    message = "; ".join(
        (f"host {each['host']}: " if hosts > 1 else "")
        + f"{_count(each['ranks'], 'rank')} with {each['threads']} threads in all on "
        f"{_count(each['cores'], 'core')}"
        for each in figures[:4]
    )
    if crowded:
        host, here, total, available = max(crowded, key=lambda each: each[2] / each[3])
        message += f": {total / available:.3g} threads a core, which wait for each other"
        each = int(available // len(here))
        remedy = (
            f"threads: {each} (OMP_NUM_THREADS={each} in a script of yours)"
            if each >= 1
            else f"ranks: {max(1, int(available))} on a host, or more cores for the job"
        )
        return Finding(name, "warning", {"hosts": figures}, message, remedy)
    if spare:
        message += f"; threads: {spare[0][1]} would use them all"
    return Finding(name, "ok", {"hosts": figures}, message)


def _available(here: Sequence[Threads]) -> float:
    cores = len({core for each in here for core in each.cores})
    quotas = [each.quota for each in here if each.quota is not None]
    return min([float(cores), *quotas])


def _quota() -> float | None:
    try:
        most, period = _QUOTA.read_text().split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return None


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"
