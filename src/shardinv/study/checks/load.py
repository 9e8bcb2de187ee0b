"""What else runs on the hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from shardinv.study.checks.finding import Finding
from shardinv.study.checks.threads import usable_cores

_BUSY = 0.3
"""Load of others for each core above which times are doubtful."""


@dataclass(frozen=True)
class Load:
    """Of a rank's host.

    Parameters
    ----------
    host
        Its number.
    running
        Processes that ran or waited to run, in the mean of the last minute, before this check; None
        where the system doesn't say.
    cores
        That the rank may use.
    """

    host: int
    running: float | None
    cores: int

    @classmethod
    def here(cls, host: int, before: float | None) -> Load:
        """Of this host, whose load was taken before the check began."""
        return cls(host, before, os.cpu_count() or len(usable_cores()))


def load_now() -> float | None:
    """Processes that run or wait to run, in the mean of the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def load(told: Sequence[Load]) -> Finding:
    """Whether other programs keep the processors busy."""
    name = "machine: load"
    hosts = {each.host: each for each in told}
    known = {host: each.running for host, each in hosts.items() if each.running is not None}
    figures = {"load": [known.get(host) for host in sorted(hosts)]}
    if not known:
        return Finding(name, "ok", figures, "the system does not say how busy it is")
    host = max(known, key=lambda h: known[h] / hosts[h].cores)
    running, cores = known[host], hosts[host].cores
    message = f"{running:.2f} on {cores} cores in the minute before"
    message = f"host {host}: {message}" if len(hosts) > 1 else message
    if running <= _BUSY * cores:
        return Finding(name, "ok", figures, message)
    remedy = (
        "measure when nothing else runs (top shows what does), or take a node of your own: "
        "srun --exclusive. Right after another run, wait a minute"
    )
    return Finding(name, "warning", figures, message + ": other programs take part of it", remedy)
