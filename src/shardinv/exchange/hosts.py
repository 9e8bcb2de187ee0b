"""Which ranks share a host: messages between them don't go over the network."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from shardinv.exchange.agreement import publish
from shardinv.exchange.communicator import Communicator


def host_of_ranks(comm: Communicator) -> tuple[int, ...]:
    """The host of each rank, as a number: 0 is rank 0's, further ones in the order of the ranks.

    The first call asks every rank, so every rank must make it; later ones send nothing.
    """
    if comm.hosts is None:
        identities = publish(comm, "the host", host_identity())
        numbers: dict[tuple[str, str, str], int] = {}
        comm.hosts = tuple(numbers.setdefault(told, len(numbers)) for told in identities)
    return comm.hosts


def host_identity() -> tuple[str, str, str]:
    """Name, boot and network of this process's host; what the system doesn't tell is empty.

    Two network namespaces of one machine (two containers, say) have addresses of their own and
    count as two hosts.
    """
    return (socket.gethostname(), _boot(), _network())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _network() -> str:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
