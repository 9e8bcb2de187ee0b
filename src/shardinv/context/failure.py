"""One rank's exception, brought to all the others.

A rank that fails writes its traceback to the store that brought the ranks together. The others
learn of it from the connection that breaks, or from a thread that looks every half second; a rank
whose main program cannot be interrupted is ended. Nobody waits at a barrier for a rank that will
not come.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from datetime import timedelta

import torch.distributed as dist

from shardinv.exchange import RankError

_FAILURE = "failure"
_ENDED = "ended"


class FailureWatch:
    """Reports this rank's failure to the others, and theirs to this one.

    Parameters
    ----------
    store
        Shared by the ranks of one context and by nothing else.
    rank, world_size
        This rank and the number of ranks.
    owns_process
        Whether the process may be ended where its main thread does not react to the failure of
        another rank within ``grace`` seconds.
    grace
        Seconds given to the main thread to raise by itself.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        world_size: int,
        *,
        owns_process: bool,
        grace: float = 5.0,
    ) -> None:
        self._store = store
        # The main thread's waits hold the store's connection; the thread needs one of its own.
        self._look = store.clone()
        self.rank = rank
        self.world_size = world_size
        self._owns_process = owns_process
        self._grace = grace
        self._interval = max(0.5, world_size / 500)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardinv-failure", daemon=True)

    def start(self) -> None:
        """Begin to look for failures of other ranks."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=2 * self._interval)

    def explain(self, wait: float) -> str | None:
        """The failed rank's message, waiting up to ``wait`` seconds for it; None without one."""
        deadline = time.monotonic() + wait
        while True:
            message = self._read()
            if message is not None or time.monotonic() > deadline:
                return message
            time.sleep(0.05)

    def report(self, error: BaseException, linger: float = 3.0) -> None:
        """Tell the other ranks that this one failed, and give them a moment to read it.

        The store lives in rank 0: were it to leave at once, the message would leave with it.
        """
        self.stop()
        try:
            if not isinstance(error, RankError):
                text = "".join(traceback.format_exception(error)).rstrip()
                self._store.compare_set(_FAILURE, "", f"rank {self.rank} failed:\n{text}")
            ended = self._store.add(_ENDED, 1)
            deadline = time.monotonic() + linger
            while ended < self.world_size and time.monotonic() < deadline:
                time.sleep(0.05)
                ended = self._store.add(_ENDED, 0)
        except Exception as lost:
            print(
                f"shardinv: rank {self.rank} could not tell the other ranks of its failure: {lost}",
                file=sys.stderr,
            )

    def _read(self) -> str | None:
        try:
            if self._look.check([_FAILURE]):
                return self._look.get(_FAILURE).decode()
        except Exception:
            # The store went with rank 0.
            return "rank 0, which holds the ranks' meeting point, is gone"
        return None

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            message = self._read()
            if message is None:
                continue
            if self._stop.wait(self._grace) or not self._owns_process:
                return
            print(f"shardinv: rank {self.rank} ends because {message}", file=sys.stderr, flush=True)
            try:
                self._look.add(_ENDED, 1)
            finally:
                os._exit(1)


def meet(store: dist.Store, world_size: int, timeout: timedelta) -> None:
    """Wait until every rank is here, without a collective.

    Used at the end of a run: a rank that is still in a collective would take a barrier's message
    for its own.

    Raises
    ------
    RankError
        If a rank does not come in time.
    """
    here = store.add("leaving", 1)
    if here == world_size:
        store.set("left", "")
    try:
        store.wait(["left"], timeout)
    except Exception as error:
        raise RankError(
            f"only {store.add('leaving', 0)} of {world_size} ranks reached the end of the program "
            f"within {timeout.total_seconds():.0f} s"
        ) from error
