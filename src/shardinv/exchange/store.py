"""Waiting for an entry of the store that brought the ranks together."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from shardinv.exchange.errors import RankError

_ASK_EVERY = 0.5


def wait_for_key(store: Store, key: str, seconds: float, failure: Callable[[], str | None]) -> bool:
    """Wait until an entry is there, or another rank has failed, or time is up.

    The store is looked at, not waited on: torch prints a warning of its own for every wait that
    ends without an answer, and a wait keeps other threads from the connection.

    Parameters
    ----------
    store
        The store.
    key
        Name of the entry.
    seconds
        How long to wait.
    failure
        Tells another rank's failure, or None.

    Returns
    -------
    bool
        Whether the entry is there; False where time is up.

    Raises
    ------
    RankError
        If another rank has failed.
    """
    started = asked = time.monotonic()
    pause = 0.0005
    while True:
        try:
            if store.check([key]):
                return True
        except Exception as error:  # the store went with rank 0
            raise RankError(failure() or f"the ranks' meeting point is gone: {error}") from error
        now = time.monotonic()
        if now - asked > _ASK_EVERY:
            asked = now
            reason = failure()
            if reason is not None:
                raise RankError(reason)
        if now - started > seconds:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
