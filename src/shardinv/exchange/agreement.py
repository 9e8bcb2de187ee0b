"""Small facts that ranks tell each other outside the data path: shapes, types, whether they agree.

They go through the store that brought the ranks together, not through a collective: a rank that
takes another way through the program then gets an answer that names the difference, where two
different collectives would wait for each other or mix their bytes.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Any

import torch

from shardinv.exchange.communicator import Communicator
from shardinv.exchange.errors import DisagreementError, RankError
from shardinv.exchange.store import wait_for_key

_PATIENCE = timedelta(seconds=60)


def publish(comm: Communicator, what: str, value: Any) -> list[Any]:
    """Tell every rank a small value and learn theirs. Every rank must call it.

    Parameters
    ----------
    comm
        The group.
    what
        What the value is, in words, for the error.
    value
        Anything that pickles.

    Returns
    -------
    list
        The value of each rank.

    Raises
    ------
    RankError
        If a rank does not answer within a minute (or the group's time-out, if that is shorter), or
        answers something else.
    """
    if comm.alone or comm.store is None:
        return [value]
    number, comm.agreements = comm.agreements, comm.agreements + 1
    comm.store.set(f"fact/{number}/{comm.rank}", pickle.dumps((what, value)))  # type: ignore[arg-type]
    answers = []
    deadline = time.monotonic() + min(_PATIENCE, comm.timeout).total_seconds()
    for rank in range(comm.size):
        key = f"fact/{number}/{rank}"
        if not wait_for_key(comm.store, key, deadline - time.monotonic(), lambda: _failure(comm)):
            raise RankError(
                f"rank {rank} did not come to compare '{what}' with rank {comm.rank} in time: it "
                "ended, hangs, or called other blocks (or the same ones with other shapes)"
            )
        told, answer = pickle.loads(comm.store.get(key))
        if told != what:
            raise RankError(
                f"ranks are at different places in the program: rank {comm.rank} compares "
                f"'{what}', rank {rank} compares '{told}'. Every rank must call the same blocks in "
                "the same order, on inputs of the same shapes and types that need gradients alike"
            )
        answers.append(answer)
    if number > 0:
        # Every rank has asked again, so every rank has read the answers before.
        comm.store.delete_key(f"fact/{number - 1}/{comm.rank}")
    return answers


def agree(
    comm: Communicator, what: str, value: Any, hint: str, show: Callable[[Any], str] = str
) -> None:
    """Check that every rank holds the same small value; every rank raises if one does not.

    Raises
    ------
    DisagreementError
        With each rank's value and the hint.
    """
    answers = publish(comm, what, value)
    if any(answer != answers[0] for answer in answers):
        told = "; ".join(f"rank {rank}: {show(answer)}" for rank, answer in enumerate(answers))
        raise DisagreementError(f"ranks disagree on {what}: {told}. {hint}")


def same_need(comm: Communicator, what: str, kind: Hashable, needed: bool) -> None:
    """Check, when a tensor of a kind is first met, that it needs a gradient on all ranks or none.

    For operations outside any block that send nothing forward, or nothing that would tell: where
    one rank alone keeps a graph, its backward pass would wait for the others, or take a later
    message of theirs for the answer. To be called on every rank.

    Parameters
    ----------
    comm
        The group.
    what
        What the tensor is, in words, for the error.
    kind
        Its shape and type, as on every rank.
    needed
        Whether it needs a gradient on this rank.

    Raises
    ------
    DisagreementError
        If ranks differ.
    """
    if comm.alone or not torch.is_grad_enabled():
        return
    key = (what, kind, needed)
    if key in comm.compared and not comm.debug:
        return
    hint = "It must be the same on every rank: call requires_grad_(...) or detach() on all of them"
    agree(comm, f"whether {what} needs a gradient", (kind, needed), hint, show=_show)
    comm.compared.add(key)


class FirstUse:
    """Facts that are agreed once, when a block first meets inputs of some kind.

    The kind (shapes, types, which inputs need a gradient) is the key; later calls with the same key
    cost nothing and send nothing. A rank that alone meets a new kind is told so after a bounded
    wait, by :func:`publish`.

    Parameters
    ----------
    comm
        The group.
    every_call
        Ask at every call: the debug mode.
    """

    def __init__(self, comm: Communicator, every_call: bool = False) -> None:
        self.comm = comm
        self._every_call = every_call
        self._known: dict[Hashable, Any] = {}

    def same(self, what: str, key: Hashable, hint: str) -> None:
        """Check once that every rank meets ``key``; every rank raises if one meets another."""
        if self.comm.alone or ((what, key) in self._known and not self._every_call):
            return
        agree(self.comm, what, key, hint, show=_show)
        self._known[(what, key)] = True

    def facts(self, what: str, key: Hashable | None, mine: Any) -> list[Any]:
        """What every rank says of inputs of this kind; asked at the first call only.

        A key of None is asked at every call.

        Raises
        ------
        DisagreementError
            If this rank says something else than it did at the first call.
        """
        if self.comm.alone:
            return [mine]
        if key is None:
            return publish(self.comm, what, mine)
        device = self.comm.device.type
        # Under autocast the same inputs give outputs of another type.
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        known = self._known.get((what, key, cast))
        if known is None or self._every_call:
            known = self._known[(what, key, cast)] = publish(self.comm, what, mine)
        if known[self.comm.rank] != mine:
            raise DisagreementError(
                f"{what}: rank {self.comm.rank} told the others {known[self.comm.rank]} for "
                f"inputs of this kind before, now it has {mine}. An operator's output must have a "
                "shape that follows from its inputs' shapes"
            )
        return known


def _show(key: Any) -> str:
    if isinstance(key, tuple):
        return "(" + ", ".join(_show(part) for part in key) + ")"
    return str(key)


def _failure(comm: Communicator) -> str | None:
    return comm.failures.explain(wait=0.0) if comm.failures is not None else None
