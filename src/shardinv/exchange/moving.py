"""Moves pixels between the boxes of the ranks, in rounds that bound the memory under way.

The one verb behind halos, gathers, re-alignments and their adjoints, on plain tensors and blind to
autograd; :mod:`shardinv.exchange.verbs` makes it differentiable. Who sends what to whom is in the
:class:`~shardinv.geometry.Plan`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from shardinv.exchange.communicator import Communicator
from shardinv.exchange.errors import RankError
from shardinv.exchange.sends import post, wait_for
from shardinv.exchange.tensors import as_bytes
from shardinv.geometry import Box, Plan, Transfer

IN_FLIGHT = 64 * 1024 * 1024
"""Bytes of messages, sent and received, that a rank has under way at once; a move of more goes in
rounds."""

APART = 512 * 1024
"""Bytes from which each image of a batch and each channel is a message of its own: rows of one are
contiguous where rows of all are not, and need no packing."""

Part = tuple[Transfer, tuple[int, ...]]
"""A block, and which index of the lead axes: ``()`` for all of them."""


def move(
    comm: Communicator,
    pieces: Sequence[torch.Tensor],
    plan: Plan,
    lead: Sequence[int],
    dtype: torch.dtype,
    operation: str = "move",
) -> list[torch.Tensor]:
    """Fill every target box of this rank from the source boxes of all ranks.

    Where several blocks meet in one target (the adjoint of a fetch of overlapping boxes) they are
    added, in the order of the ranks.

    Parameters
    ----------
    comm
        The group.
    pieces
        One tensor ``(*lead, *box.shape)`` for each source box of this rank.
    plan
        Who sends what to whom.
    lead
        The axes before the spatial ones; the same for all boxes.
    dtype
        Type of the values.
    operation
        Name for the ledger.

    Returns
    -------
    list of torch.Tensor
        One tensor for each target box of this rank. Pixels that no source holds are zero.

    Raises
    ------
    ValueError
        If the pieces don't have the shapes of the source boxes.
    RankError
        If another rank failed, or does not answer.
    """
    return start_move(comm, pieces, plan, lead, dtype, operation).finish()


def start_move(
    comm: Communicator,
    pieces: Sequence[torch.Tensor],
    plan: Plan,
    lead: Sequence[int],
    dtype: torch.dtype,
    operation: str = "move",
    *,
    in_flight: int = IN_FLIGHT,
) -> Move:
    """Begin a :func:`move`, to be ended by ``finish()`` after other work.

    Parameters
    ----------
    comm, pieces, plan, lead, dtype, operation
        As for :func:`move`. The pieces must not be written to before ``finish()``.
    in_flight
        Bytes under way at once, about; the same on every rank.

    Returns
    -------
    Move
        Every rank must finish it, and start and finish its moves in the same order as the others.
    """
    sources = plan.sources[comm.rank]
    expected = [(*lead, *box.shape) for box in sources]
    if [tuple(piece.shape) for piece in pieces] != expected:
        raise ValueError(
            f"rank {comm.rank} is to send boxes of shapes {expected}, got "
            f"{[tuple(piece.shape) for piece in pieces]}"
        )
    return Move(comm, pieces, plan, tuple(lead), dtype, operation, in_flight)


@dataclass
class _Message:
    """A flat message to or from another rank, and the buffer it lies in if it has one."""

    peer: int
    parts: list[Part]
    values: torch.Tensor
    buffer: torch.Tensor | None


@dataclass
class _Round:
    """Messages under way, and the blocks that are laid into the targets once they are here."""

    works: list[dist.Work]
    sends: list[_Message]
    receives: list[_Message]
    pending: list[tuple[Transfer, bool]]


class Move:
    """A move under way. Made by :func:`start_move`.

    In the ledger, the seconds until messages are under way count as issued and those spent waiting
    in ``finish()`` as waited; the work between start and finish counts as neither. The block is the
    one in which the move was started.
    """

    def __init__(
        self,
        comm: Communicator,
        pieces: Sequence[torch.Tensor],
        plan: Plan,
        lead: tuple[int, ...],
        dtype: torch.dtype,
        operation: str,
        in_flight: int,
    ) -> None:
        self._comm = comm
        self._plan = plan
        self._lead = lead
        self._dtype = dtype
        self._operation = operation
        self._block = comm.ledger.current_block
        self._pieces = [piece.detach() for piece in pieces]
        self._issued = self._waited = 0.0
        self._started = time.perf_counter()
        self._sent = 0
        self._finished = False
        self._failure: RankError | None = None
        whole = (plan.landings(comm.rank), plan.targets[comm.rank])
        self._results = [
            (torch.empty if landing.complete else torch.zeros)(
                (*lead, *box.shape), dtype=dtype, device=comm.device
            )
            for landing, box in zip(*whole, strict=True)
        ]
        traffic = plan.busiest * prod(lead) * dtype.itemsize
        # Two rounds are under way at once, so that one is laid while the next one travels.
        count = -(-2 * traffic // in_flight) if traffic > in_flight else 1
        self._to_come = deque(plan.in_rounds(count))
        self._under_way: deque[_Round] = deque()
        self._start_rounds()

    def finish(self) -> list[torch.Tensor]:
        """Wait for what is under way.

        Returns
        -------
        list of torch.Tensor
            As of :func:`move`. A second call returns the same.

        Raises
        ------
        RankError
            If another rank failed, or does not answer.
        """
        if self._failure is not None:
            raise self._failure
        if self._finished:
            return self._results
        while self._under_way:
            current = self._under_way.popleft()
            with self._watched():
                began = time.perf_counter()
                wait_for(current.works)
                self._waited += time.perf_counter() - began
            self._lay(current.receives, current.pending)
            for message in (*current.sends, *current.receives):
                if message.buffer is not None:
                    self._comm.buffers.give(message.buffer)
            self._start_rounds()
        self._finished = True
        self._pieces = []
        if not self._comm.alone:
            with self._comm.ledger.block(self._block):
                self._comm.ledger.book(
                    self._operation,
                    bytes_sent=self._sent,
                    seconds_issued=self._issued,
                    seconds_waited=self._waited,
                    span=(self._started, time.perf_counter()),
                )
        return self._results

    # -- rounds ----------------------------------------------------------------------------------

    def _start_rounds(self) -> None:
        while self._to_come and len(self._under_way) < 2:
            self._under_way.append(self._start(self._to_come.popleft()))

    def _start(self, plan: Plan) -> _Round:
        comm, rank = self._comm, self._comm.rank
        adds = {
            transfer: add
            for landing in plan.landings(rank)
            for transfer, add in zip(landing.transfers, landing.adds, strict=True)
        }
        sends: list[_Message] = []
        receives: list[_Message] = []
        works: list[dist.Work] = []
        if not comm.alone:
            with self._watched():
                began = time.perf_counter()
                # Staggered, so that not all ranks send to the same one first.
                for peer in ((rank + step) % comm.size for step in range(1, comm.size)):
                    messages = self._messages(plan.between(peer, rank))
                    receives += [self._to_receive(peer, parts, adds) for parts in messages]
                for peer in ((rank + step) % comm.size for step in range(1, comm.size)):
                    messages = self._messages(plan.between(rank, peer))
                    sends += [self._to_send(peer, parts) for parts in messages]
                works = post(
                    comm,
                    [(message.peer, message.values) for message in sends],
                    [(message.peer, message.values) for message in receives],
                )
                self._issued += time.perf_counter() - began
            self._sent += sum(message.values.nbytes for message in sends)
        # What this rank keeps is copied while messages travel: all that must not wait for a term
        # that comes before it.
        pending: list[tuple[Transfer, bool]] = []
        for landing in plan.landings(rank):
            in_order = any(landing.adds)
            waiting = False
            for transfer, add in zip(landing.transfers, landing.adds, strict=True):
                if transfer.source_rank == rank and not (in_order and waiting):
                    self._lay_own(transfer, add)
                else:
                    waiting = True
                    pending.append((transfer, add))
        return _Round(works, sends, receives, pending)

    def _messages(self, transfers: Sequence[Transfer]) -> list[list[Part]]:
        """The blocks of one pair of ranks as messages; both ends work out the same."""
        together: list[Part] = []
        messages: list[list[Part]] = []
        if prod(self._lead) == 0:
            return messages
        for transfer in transfers:
            if transfer.target_box.size * self._dtype.itemsize < APART:
                together.append((transfer, ()))
            else:
                indices = product(*(range(n) for n in self._lead))
                messages += [[(transfer, index)] for index in indices]
        return [together, *messages] if together else messages

    def _to_send(self, peer: int, parts: list[Part]) -> _Message:
        regions = [self._source(part) for part in parts]
        if len(regions) == 1 and self._may_travel(regions[0]):
            return _Message(peer, parts, as_bytes(regions[0]), None)
        message = self._empty(peer, parts)
        flat, offset = message.values.view(self._dtype), 0
        for region in regions:
            flat[offset : offset + region.numel()].view(region.shape).copy_(region)
            offset += region.numel()
        return message

    def _to_receive(self, peer: int, parts: list[Part], adds: dict[Transfer, bool]) -> _Message:
        if len(parts) == 1 and not adds[parts[0][0]]:
            region = self._target(parts[0])
            if self._may_travel(region):
                return _Message(peer, parts, as_bytes(region), None)
        return self._empty(peer, parts)

    def _empty(self, peer: int, parts: list[Part]) -> _Message:
        numbers = sum(
            transfer.target_box.size * (1 if index else prod(self._lead))
            for transfer, index in parts
        )
        nbytes = numbers * self._dtype.itemsize
        buffer = self._comm.buffers.take(nbytes, self._comm.wire)
        return _Message(peer, parts, buffer[:nbytes], buffer)

    def _may_travel(self, region: torch.Tensor) -> bool:
        """Whether a message can go from, or to, where the pixels lie."""
        # A single number may have any stride (that of an expanded gradient, 0) and be contiguous.
        return (
            region.numel() > 1
            and region.is_contiguous()
            and region.device == self._comm.wire
            and region.dtype == self._dtype
            and not region.is_conj()
            and not region.is_neg()
        )

    # -- pixels ----------------------------------------------------------------------------------

    def _source(self, part: Part) -> torch.Tensor:
        transfer, index = part
        origin = self._plan.sources[self._comm.rank][transfer.source_index]
        return _region(self._pieces[transfer.source_index], index, transfer.source_box, origin)

    def _target(self, part: Part) -> torch.Tensor:
        transfer, index = part
        origin = self._plan.targets[self._comm.rank][transfer.target_index]
        return _region(self._results[transfer.target_index], index, transfer.target_box, origin)

    def _lay_own(self, transfer: Transfer, add: bool) -> None:
        _put(self._source((transfer, ())), self._target((transfer, ())), add)

    def _lay(self, receives: list[_Message], pending: list[tuple[Transfer, bool]]) -> None:
        arrived: dict[Transfer, list[tuple[Part, torch.Tensor]]] = {}
        for message in receives:
            if message.buffer is None:
                continue  # it lies where it belongs
            flat, offset = message.values.view(self._dtype), 0
            for part in message.parts:
                shape = self._target(part).shape
                values = flat[offset : offset + shape.numel()].view(shape)
                arrived.setdefault(part[0], []).append((part, values))
                offset += shape.numel()
        for transfer, add in pending:
            if transfer.source_rank == self._comm.rank:
                self._lay_own(transfer, add)
                continue
            for part, values in arrived.get(transfer, ()):
                _put(values, self._target(part), add)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turn a broken connection into the failed rank's message."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, RankError):
                self._failure = error
                raise
            with self._comm.ledger.block(self._block):
                self._failure = self._comm.failed(self._operation, error)
            raise self._failure from error


def _region(tensor: torch.Tensor, index: tuple[int, ...], box: Box, origin: Box) -> torch.Tensor:
    """The pixels of a box, for one index of the lead axes or for all, as a view."""
    key: tuple[Any, ...] = (*index, Ellipsis, *box.slices(origin))
    return tensor[key]


def _put(values: torch.Tensor, region: torch.Tensor, add: bool) -> None:
    if add:
        region += values.to(region.device)
    else:
        region.copy_(values)
