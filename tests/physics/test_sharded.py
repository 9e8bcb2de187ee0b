"""Operators that need the whole image, on one of which every rank holds a box."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import StackedLinearPhysics

from shardinv import DistributedContext, distribute
from shardinv.exchange import DisagreementError
from shardinv.tensor import LayoutError, ShardedTensor
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
)
from tests.physics.stacks import (
    SUMMATION,
    flat,
    image,
    linear_operators,
    nonlinear_operators,
    quiet,
    random_like,
)

MESHES = (None, "rows", "columns")


def mesh_of(name: str | None, ranks: int) -> Any:
    return {None: None, "rows": (ranks, 1), "columns": (1, ranks)}[name]


def check_linear(ctx: DistributedContext, mesh: str | None, count: int) -> None:
    x = image()
    with quiet():
        reference = StackedLinearPhysics(linear_operators(count))
        ours = distribute(StackedLinearPhysics(linear_operators(count)), ctx)
    where = f"{count} operators, mesh {mesh}"
    sharded = ctx.shard(x, mesh_of(mesh, ctx.world_size))
    y = reference.A(x)
    assert_close(ours.A(sharded), y, SUMMATION, f"A, {where}")
    owned = ours.A(sharded, gather=False)
    v = random_like(y)
    adjoint = reference.A_adjoint(v)
    for name, measured in {"full": v, "owned": ours.own(v)}.items():
        found = ours.A_adjoint(measured, layout=sharded.sharding)
        assert isinstance(found, ShardedTensor)
        assert found.sharding == sharded.sharding
        assert_close(found.full_tensor(), adjoint, SUMMATION, f"adjoint of {name}, {where}")
        assert_close(ours.A_adjoint(measured), adjoint, SUMMATION, f"replicated adjoint, {where}")
    assert_close(owned.gather(), y, SUMMATION, f"owned, {where}")
    normal = ours.A_adjoint_A(sharded)
    assert_close(normal.full_tensor(), reference.A_adjoint_A(x), SUMMATION, f"A^T A, {where}")
    with quiet():
        z = image(3)
        near = reference.prox_l2(z, y, 0.4, max_iter=8, tol=1e-30)
        ours_near = ours.prox_l2(ctx.shard(z), y, 0.4, max_iter=8, tol=1e-30)
        assert_close(ours_near.full_tensor(), near, 1e-10, f"prox, {where}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_linear(pool: WorkerPool, world_size: int) -> None:
    for mesh in MESHES:
        for count in (1, 6):
            pool.run(check_linear, mesh, count, world_size=world_size)


def run(name: str, physics: Any, at: torch.Tensor) -> torch.Tensor:
    y = physics.A(at)
    if name == "A":
        return sum((entry.abs() ** 4).sum() for entry in flat(y))
    return (physics.A_vjp(at * at, random_like(y)).pow(2) * at.pow(3)).sum()


def check_gradients(ctx: DistributedContext, kind: str) -> None:
    operators = {"linear": linear_operators, "bent": nonlinear_operators}[kind]
    x = image()
    with quiet():
        reference = distribute(operators(3), DistributedContext())
        ours = distribute(operators(3), ctx)
    for mesh in MESHES:
        plain = x.clone().requires_grad_()
        sharded = ctx.shard(x, mesh_of(mesh, ctx.world_size)).requires_grad_()
        for name in ("A", "A_vjp"):
            loss = run(name, reference, plain)
            wanted = torch.autograd.grad(loss, plain, create_graph=True)[0]
            loss = run(name, ours, sharded)
            found = torch.autograd.grad(loss, sharded, create_graph=True)[0]
            case = f"{kind}, {name}, mesh {mesh}"
            assert_close(found.full_tensor(), wanted, 1e-11, f"gradient, {case}")
            second = torch.autograd.grad(wanted.pow(3).sum(), plain)[0]
            ours_second = torch.autograd.grad(found.pow(3).sum(), sharded)[0]
            assert_close(ours_second.full_tensor(), second, 1e-11, f"second order, {case}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("kind", ["linear", "bent"])
def test_gradients(pool: WorkerPool, kind: str, world_size: int) -> None:
    pool.run(check_gradients, kind, world_size=world_size)


def count_bytes(ctx: DistributedContext) -> list[dict[str, tuple[int, int]]]:
    """Calls and bytes by operation of the normal operator, replicated and sharded."""
    with quiet():
        ours = distribute(linear_operators(4), ctx)
    counted = []
    for x in (image(), ctx.shard(image())):
        ours.A_adjoint_A(x)
        ctx.ledger.reset()
        ours.A_adjoint_A(x)
        counted.append({e.operation: (e.calls, e.bytes_sent) for e in ctx.ledger.entries()})
    return counted


@pytest.mark.parametrize("world_size", (2, 4))
def test_the_sum_costs_half(pool: WorkerPool, world_size: int) -> None:
    total = image().numel() * 8
    results = pool.run(count_bytes, world_size=world_size)
    share = (world_size - 1) / world_size
    for replicated, sharded in results:
        assert set(replicated) == {"all_reduce"}
        assert set(sharded) == {"gather", "reduce_scatter"}
        assert all(calls == 1 for calls, _ in sharded.values())
    for operation in ("gather", "reduce_scatter"):
        sent = sum(sharded[operation][1] for _, sharded in results)
        assert sent == pytest.approx(world_size * share * total)
    reduced = sum(replicated["all_reduce"][1] for replicated, _ in results)
    assert reduced == pytest.approx(2 * world_size * share * total, rel=0.01)


def another_shape(ctx: DistributedContext) -> None:
    ours = distribute(linear_operators(3), ctx)
    ours.A_adjoint(ours.A(image()), layout=ctx.sharding((9, 9)))


def a_flat_image(ctx: DistributedContext) -> None:
    distribute(linear_operators(3), ctx).A(ctx.shard(image()).flatten(1))


def another_layout_on_one_rank(ctx: DistributedContext) -> None:
    x = ctx.shard(image())
    distribute(linear_operators(3), ctx).A(image() if ctx.rank else x)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (another_shape, "cannot be sharded as an image of"),
        (a_flat_image, "must have axes"),
    ],
)
def test_errors_name_both(pool: WorkerPool, program: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        program(DistributedContext())
    failure = pool.run(program, world_size=2, expect_error=True)
    assert_every_rank_raised(failure, LayoutError, match=message)


def test_every_rank_must_give_the_same_layout(pool: WorkerPool) -> None:
    failure = pool.run(another_layout_on_one_rank, world_size=2, expect_error=True)
    assert_every_rank_raised(failure, DisagreementError, match="rank 1: .*replicated")
