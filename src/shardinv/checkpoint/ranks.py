"""Work with files that some rank does and all must know the outcome of.

A rank whose disk is full must not leave the others waiting, nor let them believe that all went
well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shardinv.exchange import Communicator, barrier, publish

T = TypeVar("T")


def meet(comm: Communicator) -> None:
    """Wait for every rank, as long as a message may take.

    A rank that was killed is noticed at once, by its broken connection; an agreement through the
    store would wait for it for a minute.
    """
    with comm.ledger.block("files"):
        barrier(comm)


def on_main(
    comm: Communicator, what: str, work: Callable[[], T], error: type[ValueError] = ValueError
) -> T:
    """Let rank 0 do something and tell all ranks its result, which must pickle.

    Parameters
    ----------
    comm
        The group.
    what
        What is done, in words.
    work
        Called on rank 0.
    error
        What every rank raises if it fails.
    """
    return _outcome(comm, what, work if comm.rank == 0 else None, error)[0]


def on_all(
    comm: Communicator, what: str, work: Callable[[], None], error: type[ValueError] = ValueError
) -> None:
    """Let every rank do something; if it fails on one, every rank raises. As :func:`on_main`."""
    _outcome(comm, what, work, error)


def _outcome(
    comm: Communicator, what: str, work: Callable[[], Any] | None, error: type[ValueError]
) -> list[Any]:
    result, problem, cause = None, None, None
    if work is not None:
        try:
            result = work()
        except (OSError, ValueError, ImportError) as failed:
            cause = failed
            # Ours say all that there is to say.
            known = isinstance(failed, error) and error is not ValueError
            problem = str(failed) if known else f"{what} failed on rank {comm.rank}: {failed}"
    meet(comm)
    told = publish(comm, what, (result, problem))
    for _, text in told:
        if text is not None:
            raise error(text) from cause
    return [value for value, _ in told]
