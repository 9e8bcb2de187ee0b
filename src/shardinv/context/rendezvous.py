"""The store through which the ranks of a run meet: one for the life of the process."""

from __future__ import annotations

import os
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from shardinv.context.environment import Launch
from shardinv.context.interfaces import prefer_reachable_interface

_stores: dict[tuple[str, int, int, int], tuple[Store, int]] = {}


def meeting_store(launch: Launch, timeout: timedelta) -> Store:
    """A store for a new group of all ranks, in which no earlier group has left anything.

    Parameters
    ----------
    launch
        Where the ranks meet, and this rank's place among them. ``MASTER_ADDR`` and ``MASTER_PORT``
        must be set to the same.
    timeout
        How long to wait for the other ranks.

    Raises
    ------
    RuntimeError
        If the meeting point is not reached.

    Notes
    -----
    ``torchrun`` keeps one store for all groups that a program starts, where a second group would
    take the first one's addresses for its own and hang. Without it, rank 0 has the store, and
    another rank could reach the old one just before it ends. So the first is kept and shared, and
    each group writes under a name of its own. It also outlives the ranks that ``torchrun`` starts
    again after a failure (``--max-restarts``): what the failed ones wrote must not be taken for
    the new ones' word, so their number is part of the name.
    """
    place = (launch.master_addr, launch.master_port, launch.rank, launch.world_size)
    if place not in _stores:
        try:
            store, _, _ = next(
                rendezvous("env://", launch.rank, launch.world_size, timeout=timeout)
            )
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {launch.rank} did not meet the others at {launch.master_addr}, port "
                f"{launch.master_port}: {error}. Is that rank 0's host, under a name that this "
                "host knows it by? Set MASTER_ADDR to its address, or, if torchrun chose the name, "
                "give torchrun on every host that host's address: --local-addr=<address>"
            ) from error
        attempt_store = PrefixStore(f"shardinv/attempt/{_attempt()}", store)
        prefer_reachable_interface(attempt_store, launch, timeout)
        _stores[place] = (store, 0)
    store, number = _stores[place]
    _stores[place] = (store, number + 1)
    store.set_timeout(timeout)
    return PrefixStore(f"shardinv/attempt/{_attempt()}/group/{number}", store)


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
