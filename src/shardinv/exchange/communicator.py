"""The communicator: a group of ranks, and what is needed to send messages within it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from shardinv.exchange.buffers import BufferPool
from shardinv.exchange.errors import RankError
from shardinv.ledger import Ledger


class FailureSource(Protocol):
    """Tells whether another rank has failed, and with what."""

    def explain(self, wait: float) -> str | None:
        """The failed rank's message, after up to ``wait`` seconds; None if there is none."""


@dataclass
class Communicator:
    """A group of ranks as the exchange layer sees it.

    Parameters
    ----------
    rank, size
        This process's rank in the group and the number of ranks.
    device
        Where this rank's tensors live.
    ledger
        Where every operation is booked.
    group
        The process group, None where there is one rank and no group.
    backend
        ``"gloo"``, ``"nccl"`` or None.
    store
        Key-value store shared by the ranks, for small facts outside the data path.
    timeout
        How long an operation may wait for another rank.
    failures
        Tells whether another rank has failed; None where nobody watches.
    agreements
        How many facts have been compared so far; their number is part of their name.
    buffers
        Memory for messages, used again.
    hosts
        The host of each rank, once :func:`~shardinv.exchange.host_of_ranks` has asked.
    waiting
        The operation that this rank is in, and since when (``time.perf_counter``).
    noted, checking
        A digest of the cotangents of this backward pass, and which passes will compare theirs.
    compared
        Which kinds of tensors have been compared between the ranks, outside any block.
    debug
        Whether they are compared at every call.
    """

    rank: int
    size: int
    device: torch.device
    ledger: Ledger = field(default_factory=Ledger)
    group: dist.ProcessGroup | None = None
    backend: str | None = None
    store: Store | None = None
    timeout: timedelta = timedelta(minutes=5)
    failures: FailureSource | None = None
    agreements: int = 0
    buffers: BufferPool = field(default_factory=BufferPool, repr=False)
    hosts: tuple[int, ...] | None = None
    waiting: tuple[str, float] | None = field(default=None, repr=False)
    noted: torch.Tensor | None = field(default=None, repr=False)
    checking: set[int] = field(default_factory=set, repr=False)
    compared: set[Hashable] = field(default_factory=set, repr=False)
    debug: bool = False

    def __deepcopy__(self, memo: dict[int, object]) -> Communicator:
        """A copy of a block talks to the same ranks: there are no others."""
        return self

    @property
    def alone(self) -> bool:
        """Whether there is no other rank to talk to."""
        return self.size == 1

    @property
    def wire(self) -> torch.device:
        """Where a tensor must be to be sent: gloo sends from host memory only."""
        return torch.device("cpu") if self.backend == "gloo" else self.device

    def peer(self, rank: int) -> int:
        """The global rank of a rank of this group, as torch's sends want it."""
        return dist.get_global_rank(self.group, rank) if self.group is not None else rank

    @contextmanager
    def booked(self, operation: str, bytes_sent: int) -> Iterator[Stopwatch]:
        """Time an operation, book it, and turn a broken connection into the failed rank's message.

        Raises
        ------
        RankError
            If the operation failed because another rank did, or did not answer in time.
        """
        watch = Stopwatch()
        self.waiting = (f"{operation} of {self.ledger.current_block}", watch.started_at)
        try:
            yield watch
        except RuntimeError as error:
            if isinstance(error, RankError):
                raise
            raise self.failed(operation, error) from error
        finally:
            self.waiting = None
        done = time.perf_counter()
        self.ledger.book(
            operation,
            bytes_sent=bytes_sent,
            seconds_issued=(watch.issued_at or done) - watch.started_at,
            seconds_waited=done - (watch.issued_at or done),
            span=(watch.started_at, done),
        )

    def failed(self, operation: str, error: Exception) -> RankError:
        """The error to raise where an operation broke: another rank's, if one has failed."""
        where = f"rank {self.rank}, {operation} of {self.ledger.current_block}"
        reason = self.failures.explain(wait=5.0) if self.failures is not None else None
        if reason is not None:
            return RankError(f"{reason}\n({where} was waiting for it)")
        return RankError(
            f"{where} failed: {error}. Another rank ended, is doing something else, or did not "
            f"answer within {self.timeout.total_seconds():.0f} s (DistributedContext(timeout=...))"
        )


class Stopwatch:
    """Tells the time to issue an operation from the time to wait for it."""

    def __init__(self) -> None:
        self.started_at = time.perf_counter()
        self.issued_at: float | None = None

    def issued(self) -> None:
        """Say that the operation is under way: what follows is waiting."""
        self.issued_at = time.perf_counter()
