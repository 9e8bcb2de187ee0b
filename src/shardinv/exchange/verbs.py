r"""The same operations, differentiable to any order.

Two kinds of tensor appear. A *replicated* one is the same on every rank, and so is its cotangent,
which counts once: a loss computed from it is one loss, not one for each rank. A *local* one belongs
to its rank, and so does its cotangent. The operations between the two come in adjoint pairs, and
the backward of each is the other:

=====================  ==========================  ======================================
operation              from, to                    adjoint
=====================  ==========================  ======================================
``fan_out``            replicated to local         ``sum_over_ranks``
``sum_over_ranks``     local to replicated         ``fan_out``
``assemble``           local boxes to replicated   ``cut_boxes``
``gather_list``        local list to replicated    keep one's own entries
``fetch``              local boxes to local boxes  send back, and add where boxes overlap
=====================  ==========================  ======================================

A rank with nothing to do (fewer tiles than ranks) has no path of its own from the output of a
block to its input, so autograd would not visit the input there and the other ranks would wait.
Every operation therefore hands on a *token*, a scalar zero that ties each operation to the one
before it: all ranks have the same collectives in their graphs, in the same order, to any order of
differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from shardinv.exchange import collectives
from shardinv.exchange.communicator import Communicator
from shardinv.exchange.cotangents import note
from shardinv.exchange.moving import Move, move, start_move
from shardinv.exchange.tensors import TensorSpec, crop
from shardinv.geometry import Box, Layout, Plan

Token = torch.Tensor


def _zero(comm: Communicator) -> Token:
    return torch.zeros((), device=comm.device)


def fan_out(comm: Communicator, *tensors: torch.Tensor) -> tuple[list[torch.Tensor], Token]:
    """Hand replicated tensors to this rank's own part of the work.

    Costs nothing forward. Backward, the ranks' cotangents of all tensors are summed in one
    reduction for each type of number.

    Returns
    -------
    list of torch.Tensor
        The tensors, for local use.
    torch.Tensor
        The token to hand to the operation that ends the local part.
    """
    if not _tracked(*tensors):
        return list(tensors), _zero(comm)
    # Only what needs a gradient goes through the Function: everything it returns needs one, and a
    # network would compute the gradient of a noise map that nobody asked for.
    tracked = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]
    *shared, token = _FanOut.apply(
        comm, comm.ledger.current_block, *(tensors[index] for index in tracked)
    )
    local = list(tensors)
    for index, tensor in zip(tracked, shared, strict=True):
        local[index] = tensor
    return local, token


def sum_over_ranks(comm: Communicator, partial: torch.Tensor, token: Token) -> torch.Tensor:
    """Sum each rank's part into one replicated tensor.

    Where no gradient is asked for, ``partial`` may be overwritten.
    """
    if not _tracked(partial, token):
        return collectives.all_reduce(comm, partial)
    (total,) = _Sum.apply(comm, comm.ledger.current_block, token, partial)
    return total


def assemble(
    comm: Communicator,
    pieces: Sequence[torch.Tensor],
    layout: Layout,
    spec: TensorSpec,
    token: Token,
) -> torch.Tensor:
    """Put the boxes of all ranks together into one replicated tensor.

    Parameters
    ----------
    comm
        The group.
    pieces
        One tensor ``(..., *box.shape)`` for each of this rank's boxes.
    layout
        The boxes of every rank; together they must be the whole.
    spec
        Shape ``(..., *spatial)`` and type of the result.
    token
        From :func:`fan_out`.
    """
    if not _tracked(token, *pieces):
        return _assemble(comm, pieces, layout, spec)
    return _Assemble.apply(comm, comm.ledger.current_block, layout, spec, token, *pieces)


def cut_boxes(
    comm: Communicator, whole: torch.Tensor, layout: Layout
) -> tuple[list[torch.Tensor], Token]:
    """Keep one's own boxes of a replicated tensor ``(..., *spatial)``: the adjoint of assembling.

    Costs nothing forward. Backward, the boxes' cotangents are gathered.
    """
    if not _tracked(whole):
        return _cut(whole, layout[comm.rank]), _zero(comm)
    spec = TensorSpec.of(whole)
    block = _backward_name(comm.ledger.current_block)
    *pieces, token = _Cut.apply(comm, block, layout, spec, whole)
    return pieces, token


def gather_list(
    comm: Communicator,
    tensors: Sequence[torch.Tensor],
    specs: Sequence[Sequence[TensorSpec]],
    token: Token,
) -> list[torch.Tensor]:
    """Bring the tensors of all ranks to every rank, in the order of the ranks."""
    if comm.alone:
        # Each tensor keeps a graph of its own: backward from one of them leaves the others' alone.
        return list(tensors)
    if not _tracked(token, *tensors):
        gathered = collectives.gather_tensors(comm, tensors, specs)
        return [tensor for own in gathered for tensor in own]
    key = tuple(tuple(own) for own in specs)
    return list(_GatherList.apply(comm, comm.ledger.current_block, key, token, *tensors))


def fetch(
    comm: Communicator,
    pieces: Sequence[torch.Tensor],
    plan: Plan,
    spec: TensorSpec,
    token: Token,
    operation: str = "move",
) -> tuple[list[torch.Tensor], Token]:
    """Fill this rank's target boxes from the source boxes of all ranks: a halo, a re-alignment.

    Parameters
    ----------
    comm
        The group.
    pieces
        One tensor ``(*lead, *box.shape)`` for each of this rank's source boxes.
    plan
        Who sends what to whom, from :func:`shardinv.geometry.plan_transfers`.
    spec
        The lead axes, as a shape, and the type: what a rank without a source box cannot know.
    token
        From the operation before.
    operation
        Name for the ledger; the backward is booked under the adjoint's (of a gather, a
        reduce-scatter).
    """
    if not _tracked(token, *pieces):
        return move(comm, pieces, plan, spec.shape, spec.dtype, operation), token
    *targets, token = _Move.apply(
        comm, comm.ledger.current_block, plan, spec, operation, token, *pieces
    )
    return targets, token


def begin_fetch(
    comm: Communicator,
    pieces: Sequence[torch.Tensor],
    plan: Plan,
    spec: TensorSpec,
    operation: str = "move",
) -> Move:
    """Begin a :func:`fetch` where no gradient is asked for, and work while messages travel.

    Parameters
    ----------
    comm, pieces, plan, spec, operation
        As for :func:`fetch`. The pieces must not be written to before the end.

    Returns
    -------
    Move
        ``finish()`` returns the targets. Every rank must call it.

    Raises
    ------
    RuntimeError
        If a gradient is asked for: it would be lost.
    """
    if _tracked(*pieces):
        raise RuntimeError(
            "begin_fetch keeps no gradient, and a piece requires one: use fetch, or call it under "
            "torch.no_grad()"
        )
    return start_move(comm, pieces, plan, spec.shape, spec.dtype, operation)


def _tracked(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _assemble(
    comm: Communicator, pieces: Sequence[torch.Tensor], layout: Layout, spec: TensorSpec
) -> torch.Tensor:
    whole = spec.empty(comm.device)
    for piece, box in zip(pieces, layout[comm.rank], strict=True):
        crop(whole, box).copy_(piece)
    return collectives.gather_boxes(comm, whole, layout)


def _cut(whole: torch.Tensor, boxes: Sequence[Box]) -> list[torch.Tensor]:
    # Copies, also where a box is contiguous: a view would keep the whole in memory.
    return [crop(whole, box).clone(memory_format=torch.contiguous_format) for box in boxes]


def _tied(token: Token, ctx: Any) -> Token:
    """The backward's token, tied to the forward's, which the operation saved.

    A second derivative must come by the forward operations on every rank. On one with something to
    do it does, by what the local work saved for its backward; the others have only this.
    """
    (before,) = ctx.saved_tensors
    return token + before


def _backward_name(block: str) -> str:
    """Backward work is booked apart from forward work; second derivatives with first."""
    return block if block.endswith(" (backward)") else f"{block} (backward)"


class _FanOut(Function):
    @staticmethod
    def forward(comm: Communicator, block: str, *tensors: torch.Tensor) -> Any:
        return (*(tensor.view_as(tensor) for tensor in tensors), _zero(comm))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.comm, ctx.block = inputs[0], _backward_name(inputs[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        *parts, token = cotangents
        wanted = [index for index in range(len(parts)) if ctx.needs_input_grad[2 + index]]
        with ctx.comm.ledger.block(ctx.block):
            sums = _Sum.apply(ctx.comm, ctx.block, token, *(parts[index] for index in wanted))
        results: list[torch.Tensor | None] = [None] * len(parts)
        for index, total in zip(wanted, sums, strict=True):
            results[index] = total
        return (None, None, *results)


class _Sum(Function):
    @staticmethod
    def forward(comm: Communicator, block: str, token: Token, *parts: torch.Tensor) -> Any:
        return tuple(_sum_bucketed(comm, parts))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.comm, ctx.block = inputs[0], _backward_name(inputs[1])
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        note(ctx.comm, *cotangents)
        with ctx.comm.ledger.block(ctx.block):
            *local, token = _FanOut.apply(ctx.comm, ctx.block, *cotangents)
        return (None, None, _tied(token, ctx), *local)


def _sum_bucketed(comm: Communicator, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Sum many tensors over the ranks with one reduction for each type of number."""
    if len(parts) == 1:
        return [collectives.all_reduce(comm, parts[0].clone(memory_format=torch.contiguous_format))]
    results: list[torch.Tensor | None] = [None] * len(parts)
    dtypes = sorted({part.dtype for part in parts}, key=str)
    for dtype in dtypes:
        members = [index for index, part in enumerate(parts) if part.dtype == dtype]
        flat = torch.cat([parts[index].reshape(-1) for index in members])
        flat = collectives.all_reduce(comm, flat)
        for index, values in zip(
            members, flat.split([parts[index].numel() for index in members]), strict=True
        ):
            # A copy: outputs of one Function must not be views of one another.
            results[index] = values.view(parts[index].shape).clone()
    return [result for result in results if result is not None]


class _Assemble(Function):
    @staticmethod
    def forward(
        comm: Communicator,
        block: str,
        layout: Layout,
        spec: TensorSpec,
        token: Token,
        *pieces: torch.Tensor,
    ) -> torch.Tensor:
        return _assemble(comm, pieces, layout, spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.comm, block, ctx.layout, ctx.spec = inputs[:4]
        ctx.block = _backward_name(block)
        ctx.save_for_backward(inputs[4])

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        note(ctx.comm, cotangent)
        *pieces, token = _Cut.apply(ctx.comm, ctx.block, ctx.layout, ctx.spec, cotangent)
        return (None, None, None, None, _tied(token, ctx), *pieces)


class _Cut(Function):
    """Keep one's own boxes of a replicated tensor: the adjoint of assembling it."""

    @staticmethod
    def forward(
        comm: Communicator, block: str, layout: Layout, spec: TensorSpec, whole: torch.Tensor
    ) -> Any:
        return (*_cut(whole, layout[comm.rank]), _zero(comm))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.comm, ctx.block, ctx.layout, ctx.spec = inputs[:4]

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        *pieces, token = cotangents
        with ctx.comm.ledger.block(ctx.block):
            whole = _Assemble.apply(ctx.comm, ctx.block, ctx.layout, ctx.spec, token, *pieces)
        return (None, None, None, None, whole)


class _GatherList(Function):
    @staticmethod
    def forward(
        comm: Communicator, block: str, specs: Any, token: Token, *tensors: torch.Tensor
    ) -> Any:
        gathered = collectives.gather_tensors(comm, tensors, specs)
        gathered[comm.rank] = [tensor.clone() for tensor in tensors]
        return tuple(tensor for own in gathered for tensor in own)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.comm, block, ctx.specs = inputs[:3]
        ctx.block = _backward_name(block)
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        note(ctx.comm, *cotangents)
        *own, token = _Keep.apply(ctx.comm, ctx.block, ctx.specs, *cotangents)
        return (None, None, None, _tied(token, ctx), *own)


class _Keep(Function):
    """Keep one's own entries of a replicated list: the adjoint of gathering it."""

    @staticmethod
    def forward(comm: Communicator, block: str, specs: Any, *tensors: torch.Tensor) -> Any:
        first = sum(len(own) for own in specs[: comm.rank])
        own = tensors[first : first + len(specs[comm.rank])]
        return (*(tensor.clone() for tensor in own), _zero(comm))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.comm, ctx.block, ctx.specs = inputs[:3]

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        *own, token = cotangents
        with ctx.comm.ledger.block(ctx.block):
            everything = _GatherList.apply(ctx.comm, ctx.block, ctx.specs, token, *own)
        return (None, None, None, *everything)


_ADJOINTS = {"gather": "reduce_scatter", "reduce_scatter": "gather"}
"""Under which name the adjoint of a move is booked, where it has another."""


class _Move(Function):
    @staticmethod
    def forward(
        comm: Communicator,
        block: str,
        plan: Plan,
        spec: TensorSpec,
        operation: str,
        token: Token,
        *pieces: torch.Tensor,
    ) -> Any:
        moved = move(comm, pieces, plan, spec.shape, spec.dtype, operation)
        return (*moved, _zero(comm))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.comm, block, ctx.plan, ctx.spec, operation = inputs[:5]
        ctx.block = _backward_name(block)
        ctx.operation = _ADJOINTS.get(operation, operation)
        ctx.save_for_backward(inputs[5])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        *targets, token = cotangents
        with ctx.comm.ledger.block(ctx.block):
            *pieces, token = _Move.apply(
                ctx.comm,
                ctx.block,
                ctx.plan.reversed,
                ctx.spec,
                ctx.operation,
                token,
                *targets,
            )
        return (None, None, None, None, None, _tied(token, ctx), *pieces)
