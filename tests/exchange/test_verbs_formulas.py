"""Small distributed computations against the same formula on one process, to second order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from shardinv import DistributedContext
from shardinv.exchange import (
    TensorSpec,
    assemble,
    crop,
    fan_out,
    fetch,
    gather_list,
    sum_over_ranks,
)
from shardinv.geometry import Box, Layout, Partition, deal, plan_transfers
from tests.exchange.inputs import values
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, compare_with_reference

SHAPE = (6, 5)


def inputs(*names: str) -> tuple[Tensor, ...]:
    """An image and a weight map, the same on every rank."""
    complex_image = values(7, SHAPE, torch.complex128)
    all_inputs = {
        "image": values(5, SHAPE, torch.float64),
        "weight": values(6, SHAPE, torch.float64),
        "complex": complex_image,
    }
    return tuple(all_inputs[name] for name in names)


def term(index: int, x: Tensor, w: Tensor) -> Tensor:
    """One of the terms that are dealt to the ranks, not linear in either argument."""
    return (x * (index + 1)).sin() * w**2 + x.roll(index, -1) ** 3


def check_sum(ctx: DistributedContext, terms: int) -> None:
    mine = deal([1.0] * terms, ctx.world_size)[ctx.rank]

    def distributed(x: Tensor, w: Tensor) -> Tensor:
        (x, w), token = fan_out(ctx.comm, x, w)
        partial = torch.zeros_like(x)
        for index in mine:
            partial = partial + term(index, x, w)
        return sum_over_ranks(ctx.comm, partial, token)

    def reference(x: Tensor, w: Tensor) -> Tensor:
        return sum(term(index, x, w) for index in range(terms)) + torch.zeros_like(x)

    compare_with_reference(distributed, reference, inputs("image", "weight"), rtol=1e-12)


@pytest.mark.parametrize("terms", [1, 5])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sum_of_terms(pool: WorkerPool, world_size: int, terms: int) -> None:
    pool.run(check_sum, terms, world_size=world_size)


def check_partial_without_gradient(ctx: DistributedContext) -> None:
    """A partial result that depends on nothing: autograd does not know it on this rank."""

    def distributed(x: Tensor) -> Tensor:
        (x,), token = fan_out(ctx.comm, x)
        partial = x**3 if ctx.rank == 0 else torch.ones(SHAPE, dtype=torch.float64)
        return sum_over_ranks(ctx.comm, partial, token)

    def reference(x: Tensor) -> Tensor:
        return x**3 + (ctx.world_size - 1)

    compare_with_reference(distributed, reference, inputs("image"), rtol=1e-12)


@pytest.mark.parametrize("world_size", [2, 3])
def test_rank_whose_part_depends_on_nothing(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_partial_without_gradient, world_size=world_size)


def check_boxes(ctx: DistributedContext, mesh: tuple[int, int]) -> None:
    part = Partition.split(SHAPE, mesh)
    layout = tuple(
        tuple(box for box in part.boxes[rank :: ctx.world_size] if not box.is_empty)
        for rank in range(ctx.world_size)
    )

    def pointwise(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin() + w**3

    def distributed(x: Tensor, w: Tensor) -> Tensor:
        spec = TensorSpec.of(x)
        (x, w), token = fan_out(ctx.comm, x, w)
        pieces = [pointwise(crop(x, box), crop(w, box)) for box in layout[ctx.rank]]
        return assemble(ctx.comm, pieces, layout, spec, token)

    compare_with_reference(distributed, pointwise, inputs("image", "weight"), rtol=1e-12)


@pytest.mark.parametrize("mesh", [(1, 1), (2, 3)])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_boxes_put_together(pool: WorkerPool, world_size: int, mesh: tuple[int, int]) -> None:
    pool.run(check_boxes, mesh, world_size=world_size)


def outputs_of_operator(index: int, x: Tensor, w: Tensor) -> list[Tensor]:
    """Operators with outputs of different shapes, numbers and types."""
    if index == 0:
        return [(x.sin() * w)[:2]]
    if index == 1:
        return [torch.polar(w.square() + 1, x)[:, 1], x.sum() * w.prod()]
    return [(x * w).flatten() ** 2]


def check_list(ctx: DistributedContext, operators: int) -> None:
    hands = deal([1.0] * operators, ctx.world_size)
    probe = inputs("image", "weight")
    specs = [
        [TensorSpec.of(t) for index in hand for t in outputs_of_operator(index, *probe)]
        for hand in hands
    ]

    def distributed(x: Tensor, w: Tensor) -> list[Tensor]:
        (x, w), token = fan_out(ctx.comm, x, w)
        mine = [t for index in hands[ctx.rank] for t in outputs_of_operator(index, x, w)]
        return gather_list(ctx.comm, mine, specs, token)

    def reference(x: Tensor, w: Tensor) -> list[Tensor]:
        return [t for hand in hands for index in hand for t in outputs_of_operator(index, x, w)]

    compare_with_reference(distributed, reference, probe, rtol=1e-12)


@pytest.mark.parametrize("operators", [1, 3])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_lists_gathered(pool: WorkerPool, world_size: int, operators: int) -> None:
    pool.run(check_list, operators, world_size=world_size)


def smooth(window: Tensor, kernel: Tensor) -> Tensor:
    """A 3×3 correlation without padding, then something not linear."""
    rows, columns = window.shape[-2] - 2, window.shape[-1] - 2
    total = window.new_zeros((rows, columns))
    for i in range(3):
        for j in range(3):
            total = total + kernel[i, j] * window[i : i + rows, j : j + columns]
    return total.sin() if not total.is_complex() else total * total


def check_halos(ctx: DistributedContext, ranks_used: int, periodic: bool, kind: str) -> None:
    """Two layers with a halo each, on boxes of which some ranks have none."""
    boxes = [(box,) for box in Partition.split(SHAPE, (ranks_used, 1)).boxes]
    layout = (*boxes, *((),) * (ctx.world_size - ranks_used))
    windows = tuple(tuple(box.grow((1, 1)) for box in held) for held in layout)
    plan = plan_transfers(layout, windows, SHAPE if periodic else None)

    def distributed(x: Tensor, kernel: Tensor) -> Tensor:
        whole, lead = TensorSpec.of(x), TensorSpec((), x.dtype)
        (x, kernel), token = fan_out(ctx.comm, x, kernel)
        pieces = [crop(x, box) for box in layout[ctx.rank]]
        for _ in range(2):
            held, token = fetch(ctx.comm, pieces, plan, lead, token)
            pieces = [smooth(window, kernel) for window in held]
        return assemble(ctx.comm, pieces, layout, whole, token)

    def reference(x: Tensor, kernel: Tensor) -> Tensor:
        for _ in range(2):
            margin = (
                pad(x[None, None], (1, 1, 1, 1), mode="circular")[0, 0]
                if periodic
                else pad(x, (1, 1, 1, 1))
            )
            x = smooth(margin, kernel)
        return x

    kernel = values(8, (3, 3), torch.float64)
    compare_with_reference(distributed, reference, (*inputs(kind), kernel), rtol=1e-12)


@pytest.mark.parametrize("kind", ["image", "complex"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_layers_with_halos(pool: WorkerPool, world_size: int, kind: str) -> None:
    for ranks_used in {1, world_size}:
        for periodic in (False, True):
            pool.run(check_halos, ranks_used, periodic, kind, world_size=world_size)


def check_higher_orders(ctx: DistributedContext, verb: str) -> None:
    """One piece, on the last rank; a loss that is linear in the result.

    The cotangent is then a constant, so nothing but the tokens says on the other ranks that the
    gradient can be differentiated once more.
    """
    comm, last = ctx.comm, ctx.world_size - 1
    box = Box.whole(SHAPE)
    layout: Layout = (*((),) * last, (box,))
    cotangent = values(9, SHAPE, torch.float64)
    (x,) = inputs("image")

    def distributed(x: Tensor) -> Tensor:
        spec = TensorSpec.of(x)
        (x,), token = fan_out(comm, x)
        mine = [x**4] if comm.rank == last else []
        if verb == "sum_over_ranks":
            partial = mine[0] if mine else torch.zeros(SHAPE, dtype=torch.float64)
            return sum_over_ranks(comm, partial, token)
        if verb == "gather_list":
            return gather_list(comm, mine, [*([],) * last, [spec]], token)[0]
        if verb == "fetch":  # to the first rank, and not linear there either
            there = plan_transfers(layout, layout[::-1])
            mine, token = fetch(comm, mine, there, TensorSpec((), spec.dtype), token)
            mine = [piece.sin() for piece in mine]
            return assemble(comm, mine, layout[::-1], spec, token)
        return assemble(comm, mine, layout, spec, token)

    def reference(x: Tensor) -> Tensor:
        return (x**4).sin() if verb == "fetch" else x**4

    orders = []
    for function in (distributed, reference):
        leaf = x.clone().requires_grad_()
        derivative = function(leaf)
        orders.append([])
        for _ in range(4):
            (derivative,) = torch.autograd.grad(
                (derivative * cotangent).sum(), leaf, create_graph=True
            )
            orders[-1].append(derivative.detach())
    for order, (ours, theirs) in enumerate(zip(*orders, strict=True), start=1):
        assert_close(ours, theirs, 1e-12, f"derivative of order {order}")


@pytest.mark.parametrize("verb", ["sum_over_ranks", "assemble", "gather_list", "fetch"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_four_orders_with_one_piece_for_all_ranks(
    pool: WorkerPool, world_size: int, verb: str
) -> None:
    pool.run(check_higher_orders, verb, world_size=world_size)


def check_vjp(ctx: DistributedContext, terms: int) -> None:
    mine = deal([1.0] * terms, ctx.world_size)[ctx.rank]
    x, w = inputs("image", "weight")
    cotangent = values(9, SHAPE, torch.float64)

    def distributed(x: Tensor, w: Tensor) -> Tensor:
        (x, w), token = fan_out(ctx.comm, x, w)
        partial = torch.zeros_like(x)
        for index in mine:
            partial = partial + term(index, x, w)
        return sum_over_ranks(ctx.comm, partial, token)

    def reference(x: Tensor, w: Tensor) -> Tensor:
        return sum(term(index, x, w) for index in range(terms)) + torch.zeros_like(x)

    found = []
    for function in (distributed, reference):
        output, pull_back = torch.func.vjp(function, x, w)
        found.append([output, *pull_back(cotangent)])
        (only_x,) = torch.func.vjp(lambda x, f=function: f(x, w), x)[1](cotangent)
        found[-1].append(only_x)
        gradient = torch.func.grad(lambda x, f=function: (f(x, w) * cotangent).sum())
        # A derivative of a derivative, within torch.func alone and outside of it.
        found[-1].append(torch.func.grad(lambda x, g=gradient: g(x).square().sum())(x))
        leaf = x.clone().requires_grad_()
        found[-1] += torch.autograd.grad(gradient(leaf).square().sum(), leaf)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("terms", [1, 4])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_through_torch_func(pool: WorkerPool, world_size: int, terms: int) -> None:
    pool.run(check_vjp, terms, world_size=world_size)


def check_untracked(ctx: DistributedContext) -> None:
    x, w = inputs("image", "weight")
    leaf = x.requires_grad_()
    (first, second), token = fan_out(ctx.comm, leaf, w)
    assert first.requires_grad
    assert second is w, "what needs no gradient must not begin to need one"
    assert token.requires_grad
    with torch.no_grad():
        (first,), token = fan_out(ctx.comm, leaf)
        assert first is leaf
        assert not token.requires_grad
        partial = leaf.detach().clone()
        total = sum_over_ranks(ctx.comm, partial, token)
        assert not total.requires_grad
        assert total.data_ptr() == partial.data_ptr(), "a copy was made that nobody needs"
    (first,), token = fan_out(ctx.comm, leaf)
    partial = first * 2
    before = partial.detach().clone()
    sum_over_ranks(ctx.comm, partial, token)
    assert torch.equal(partial, before), "with a gradient, the partial result must stay"


@pytest.mark.parametrize("world_size", [1, 2])
def test_nothing_is_tracked_or_copied_without_need(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_untracked, world_size=world_size)


def check_integers(ctx: DistributedContext) -> None:
    """Labels travel beside values that need a gradient."""
    own = [TensorSpec((2,), torch.float64), TensorSpec((3,), torch.int64)]
    leaf = values(0, (2,), torch.float64).requires_grad_()
    (x,), token = fan_out(ctx.comm, leaf)
    labels = torch.full((3,), ctx.rank)
    gathered = gather_list(ctx.comm, [x * (ctx.rank + 1), labels], [own] * ctx.world_size, token)
    assert [t.requires_grad for t in gathered] == [True, False] * ctx.world_size
    assert [int(t[0]) for t in gathered[1::2]] == list(range(ctx.world_size))
    (gradient,) = torch.autograd.grad(
        sum(t.square().sum() for t in gathered[::2]), leaf, create_graph=True
    )
    factor = 2 * sum((rank + 1) ** 2 for rank in range(ctx.world_size))
    torch.testing.assert_close(gradient, factor * leaf)
    (second,) = torch.autograd.grad(gradient.sum(), leaf)
    torch.testing.assert_close(second, torch.full_like(second, factor))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_integers_beside_values_with_gradient(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_integers, world_size=world_size)
