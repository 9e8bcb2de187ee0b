"""One rank's exception, brought to all the others.

A rank that fails writes its traceback to the store that brought the ranks together. The others
learn of it from the connection that breaks, or from a thread that looks every half second; a rank
whose main program cannot be interrupted is ended. Nobody waits at a barrier for a rank that will
not come.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store

from shardinv.exchange import RankError, wait_for_key

_FAILURE = "failure"
_ENDED = "ended"
_LEAVING = "leaving"
_LEFT = "left"
_GONE = "gone"

_DESERTED_AFTER = 10.0
"""Seconds in one operation after which a rank asks whether others have left; messages that they
sent before have arrived by then."""


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
    waiting
        The operation that this rank waits in, and since when; None where it isn't in one.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        owns_process: bool,
        grace: float = 5.0,
        waiting: Callable[[], tuple[str, float] | None] = lambda: None,
    ) -> None:
        # The thread shares the store's connection with the main thread, whose waits there are
        # short: a second connection for every rank would double the load on rank 0.
        self._store = store
        self.rank = rank
        self.world_size = world_size
        self._owns_process = owns_process
        self._grace = grace
        self._waiting = waiting
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

    def report(self, error: BaseException) -> None:
        """Tell the other ranks that this one failed, unless one of them said so before."""
        self.stop()
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            self._store.compare_set(_FAILURE, "", f"rank {self.rank} failed:\n{text}")
        except Exception as lost:
            print(
                f"shardinv: rank {self.rank} could not tell the other ranks of its failure: {lost}",
                file=sys.stderr,
            )

    def linger(self, seconds: float = 3.0) -> None:
        """Stay until the other ranks have ended too, or for some seconds.

        The store lives in rank 0: were it to leave at once, the message would leave with it.
        """
        deadline = time.monotonic() + seconds
        # The store may be gone already, with rank 0: there is nobody left to wait for then.
        with contextlib.suppress(Exception):
            ended = self._store.add(_ENDED, 1)
            while ended < self.world_size and time.monotonic() < deadline:
                time.sleep(0.05)
                ended = self._store.add(_ENDED, 0)

    def meet(self, timeout: timedelta) -> None:
        """Wait until every rank has come to the end of the program, without a collective.

        A rank that is still in a collective would take a barrier's message for its own.

        Raises
        ------
        RankError
            If a rank failed, or does not come in time.
        """
        if self._store.add(_LEAVING, 1) == self.world_size:
            self._store.set(_LEFT, "")
        if not wait_for_key(self._store, _LEFT, timeout.total_seconds(), self._read):
            raise RankError(
                f"only {self._store.add(_LEAVING, 0)} of {self.world_size} ranks reached the end "
                f"of the program within {timeout.total_seconds():.0f} s"
            )
        # The store goes with rank 0, which therefore leaves last: the others may be between two
        # looks at it.
        deadline = time.monotonic() + 5.0
        with contextlib.suppress(Exception):
            gone = self._store.add(_GONE, 1)
            while self.rank == 0 and gone < self.world_size and time.monotonic() < deadline:
                time.sleep(0.01)
                gone = self._store.add(_GONE, 0)

    def _read(self) -> str | None:
        try:
            if self._store.check([_FAILURE]):
                return self._store.get(_FAILURE).decode()
        except Exception:
            # The store went with rank 0.
            return "rank 0, which holds the ranks' meeting point, is gone"
        return None

    def _deserted(self) -> str | None:
        """What to say where this rank waits for one that has come to the end of its program."""
        waiting = self._waiting()
        if waiting is None or time.perf_counter() - waiting[1] < _DESERTED_AFTER:
            return None
        try:
            left = self._store.add(_LEAVING, 0)
        except Exception:
            return None
        if not left:
            return None
        return (
            f"rank {self.rank} failed:\nit has waited {_DESERTED_AFTER:.0f} s in {waiting[0]}, "
            f"and {left} of {self.world_size} ranks came to the end of the program without it. "
            "Every rank must call the same blocks, and backward() too, in the same order"
        )

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            message = self._read()
            if message is None and (message := self._deserted()) is not None:
                with contextlib.suppress(Exception):
                    self._store.compare_set(_FAILURE, "", message)
            if message is None:
                continue
            if self._stop.wait(self._grace) or not self._owns_process:
                return
            print(f"shardinv: rank {self.rank} ends because {message}", file=sys.stderr, flush=True)
            try:
                self._store.add(_ENDED, 1)
            finally:
                os._exit(1)
