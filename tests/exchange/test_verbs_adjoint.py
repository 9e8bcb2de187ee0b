"""Every verb is linear: its backward must be its adjoint, and the backward's backward itself.

Inner products count a replicated tensor once, and a local one on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from shardinv import DistributedContext
from shardinv.exchange import (
    Communicator,
    TensorSpec,
    all_reduce,
    assemble,
    fan_out,
    fetch,
    gather_list,
    sum_over_ranks,
)
from shardinv.geometry import Box, Layout, Partition, plan_transfers
from tests.exchange.inputs import values
from tests.harness import WORLD_SIZES, WorkerPool, assert_close

Tensors = Sequence[Tensor]
LEAD = (2,)


@dataclass
class Verb:
    """A verb on this rank, with the shapes of what goes in and comes out."""

    apply: Callable[[Tensors, Tensor], tuple[Tensors, Tensor | None]]
    takes: list[TensorSpec]
    gives: list[TensorSpec]
    takes_local: bool
    gives_local: bool


def verbs(comm: Communicator, layout: Layout, dtype: torch.dtype) -> dict[str, Verb]:
    """All five, on boxes of which some ranks have none."""
    rank, shape = comm.rank, (6, 5)
    whole = TensorSpec((*LEAD, *shape), dtype)
    boxes = [TensorSpec((*LEAD, *box.shape), dtype) for box in layout[rank]]
    windows = tuple(tuple(box.grow((1, 2)) for box in held) for held in layout)
    plan = plan_transfers(layout, windows, (6, None))
    halos = [TensorSpec((*LEAD, *box.shape), dtype) for box in windows[rank]]
    lists = [[TensorSpec((*LEAD, *box.shape), dtype) for box in held] for held in layout]
    lead = TensorSpec(LEAD, dtype)
    return {
        "fan_out": Verb(
            lambda t, token: fan_out(comm, *t), [whole, whole], [whole, whole], False, True
        ),
        "sum_over_ranks": Verb(
            lambda t, token: ([sum_over_ranks(comm, t[0], token)], None),
            [whole],
            [whole],
            True,
            False,
        ),
        "assemble": Verb(
            lambda t, token: ([assemble(comm, t, layout, whole, token)], None),
            boxes,
            [whole],
            True,
            False,
        ),
        "gather_list": Verb(
            lambda t, token: (gather_list(comm, t, lists, token), None),
            boxes,
            [spec for own in lists for spec in own],
            True,
            False,
        ),
        "fetch": Verb(lambda t, token: fetch(comm, t, plan, lead, token), boxes, halos, True, True),
    }


def layouts(ranks: int) -> dict[str, Layout]:
    tiles = Partition.split((6, 5), (2, 2)).boxes
    return {
        "one box a rank": tuple((box,) for box in Partition.split((6, 5), (ranks, 1)).boxes),
        "several boxes": tuple(tiles[rank::ranks] for rank in range(ranks)),
        "all on the last rank": (*((),) * (ranks - 1), (Box.whole((6, 5)),)),
    }


def draw(comm: Communicator, specs: Sequence[TensorSpec], local: bool, seed: int) -> list[Tensor]:
    """Random tensors: the same on every rank where replicated."""
    owner = comm.rank if local else 99
    return [values(owner, spec.shape, spec.dtype, seed + i) for i, spec in enumerate(specs)]


def inner(comm: Communicator, a: Tensors, b: Tensors, local: bool) -> float:
    """Re⟨a, b⟩ over all ranks."""
    total = torch.zeros((), dtype=torch.float64)
    for u, v in zip(a, b, strict=True):
        product = torch.vdot(u.detach().flatten(), v.detach().flatten())
        total = total + product.real
    return (all_reduce(comm, total) if local else total).item()


def awkward(kind: str, tensor: Tensor) -> Tensor:
    """The same values as a cotangent may come: not contiguous, or conjugated lazily."""
    if kind == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "conjugated":
        return tensor.conj().clone().conj()
    return tensor


def check_adjoint(ctx: DistributedContext, layout_name: str, dtype: torch.dtype) -> None:
    comm = ctx.comm
    layout = layouts(comm.size)[layout_name]
    for name, verb in verbs(comm, layout, dtype).items():
        inputs = [t.requires_grad_() for t in draw(comm, verb.takes, verb.takes_local, 1)]
        token = torch.zeros((), requires_grad=True)  # as from fan_out: also with nothing to do
        outputs, out_token = verb.apply(inputs, token)
        assert [TensorSpec.of(t) for t in outputs] == verb.gives, name
        plain, _ = verb.apply([t.detach().clone() for t in inputs], torch.zeros(()))
        assert_close(
            [t.detach() for t in outputs], list(plain), 0.0, f"{name} with and without gradient"
        )
        for kind in ["plain", "transposed"] + ["conjugated"] * dtype.is_complex:
            what = f"{name}, {kind} cotangents, rank {comm.rank}"
            weights = draw(comm, verb.gives, verb.gives_local, 50)
            weights = [awkward(kind, w).requires_grad_() for w in weights]
            # The token goes on to whatever the block does next, on every rank.
            ends, end_weights = list(outputs), list(weights)
            if out_token is not None:
                ends.append(out_token)
                end_weights.append(torch.zeros((), requires_grad=True))
            found = torch.autograd.grad(
                ends, [*inputs, token], end_weights, create_graph=True, materialize_grads=True
            )
            back, back_token = found[:-1], found[-1]
            one = inner(comm, outputs, weights, verb.gives_local)
            other = inner(comm, inputs, back, verb.takes_local)
            assert one == pytest.approx(other, rel=1e-12), what
            # The adjoint of the adjoint is the verb: differentiate the backward by its cotangent.
            again = draw(comm, verb.takes, verb.takes_local, 70)
            twice = torch.autograd.grad(
                [*back, back_token],
                end_weights,
                [*again, torch.zeros(())],
                materialize_grads=True,
                allow_unused=True,
            )
            expected, _ = verb.apply(again, torch.zeros(()))
            twice = [t for t, _ in zip(twice, weights)]
            assert_close(twice, list(expected), 1e-15, f"second derivative of {what}")


@pytest.mark.parametrize("layout_name", ["one box a rank", "several boxes", "all on the last rank"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_backward_is_the_adjoint_and_its_backward_the_verb(
    pool: WorkerPool, world_size: int, layout_name: str
) -> None:
    for dtype in (torch.float64, torch.complex128):
        pool.run(check_adjoint, layout_name, dtype, world_size=world_size)
