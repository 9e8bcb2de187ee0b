"""Stacks of operators that are not linear, for which DeepInverse has no reference of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import LinearPhysics, Physics, StackedLinearPhysics, StackedPhysics

from shardinv import DistributedStackedLinearPhysics, DistributedStackedPhysics, distribute
from shardinv.context import DistributedContext
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
    compare_with_reference,
)
from tests.physics.stacks import (
    SUMMATION,
    Dense,
    Gradients,
    Spectrum,
    Squared,
    flat,
    image,
    linear_operators,
    nonlinear_operators,
    quiet,
    random_like,
    unflat,
)


def mixed() -> list[Physics]:
    return [Dense(17, seed=1), Squared(13, seed=2), Spectrum(seed=3), Squared(9, seed=4)]


def vjp(operators: list[Physics], x: torch.Tensor, v: Any) -> torch.Tensor:
    return sum(op.A_vjp(x, v[i]) for i, op in enumerate(operators))


def compare_everything(ctx: DistributedContext, count: int) -> None:
    for name, make in {"nonlinear": lambda: nonlinear_operators(count), "mixed": mixed}.items():
        operators = make()
        reference, ours = StackedPhysics(operators), distribute(StackedPhysics(make()), ctx)
        assert isinstance(ours, StackedPhysics)
        assert isinstance(ours, DistributedStackedPhysics)
        assert not isinstance(ours, LinearPhysics)
        x = image(0)
        y = random_like(reference.A(x))
        compare_with_reference(ours.A, reference.A, x, rtol=SUMMATION)
        compare_with_reference(ours, reference, x, rtol=SUMMATION)
        compare_with_reference(
            lambda x, *v, ours=ours, y=y: ours.A_vjp(x, unflat(list(v), y)),
            lambda x, *v, operators=operators, y=y: vjp(operators, x, unflat(list(v), y)),
            (x, *flat(y)),
            rtol=SUMMATION,
        )
        owned = ours.own(y)
        assert_close(ours.A_vjp(x, owned), vjp(operators, x, y), SUMMATION, name)
        part = ours.A_vjp(x, owned, gather=False)
        assert_close(ctx.all_reduce(part.clone()), vjp(operators, x, y), SUMMATION, name)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_values_and_gradients(pool: WorkerPool, world_size: int, count: int) -> None:
    pool.run(compare_everything, count, world_size=world_size)


def jacobian_products(ctx: DistributedContext) -> None:
    operators = mixed()
    ours = distribute(mixed(), ctx)
    x, v = image(0), image(1)

    def reference(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        return [torch.func.jvp(op.A, (x,), (v,))[1] for op in operators]

    compare_with_reference(ours.A_jvp, reference, (x, v), rtol=SUMMATION, second_order=False)
    assert_close(ours.A_jvp(x, v, gather=False).gather(), reference(x, v), SUMMATION)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_jacobian_vector_products(pool: WorkerPool, world_size: int) -> None:
    pool.run(jacobian_products, world_size=world_size)


def norm(ctx: DistributedContext) -> torch.Tensor:
    operators = nonlinear_operators(3)
    ours = distribute(operators, ctx)
    x = image(0, batch=1)
    jacobian = torch.cat(
        [torch.autograd.functional.jacobian(op.A, x).flatten(0, 1).flatten(1) for op in operators]
    )
    exact = torch.linalg.matrix_norm(jacobian, 2) ** 2
    with quiet():
        found = ours.compute_norm(x, verbose=False)
    assert_close(found, exact, 1e-3)
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_norm_of_the_jacobian(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(norm, world_size=world_size))


def descend(
    operators: list[Physics], y: list[torch.Tensor], x: torch.Tensor, max_iter: int, tol: float
) -> tuple[torch.Tensor, int]:
    """DeepInverse's gradient descent for one operator, on the measurements as one vector."""
    for iteration in range(1, max_iter + 1):
        residual = [op.A(x) - y[i] for i, op in enumerate(operators)]
        x = x - 0.1 * vjp(operators, x, residual)
        after = torch.cat([(op.A(x) - y[i]).flatten() for i, op in enumerate(operators)])
        if after.square().mean() < tol:
            return x, iteration
    return x, max_iter


def inverse(ctx: DistributedContext) -> torch.Tensor:
    operators = nonlinear_operators(3)
    stack = StackedPhysics(nonlinear_operators(3))
    start = image(1)
    y = stack.A(image(0))
    for max_iter, tol in ((4, 1e-12), (200, 0.2)):
        stack.max_iter, stack.tol = max_iter, tol
        ours = distribute(stack, ctx)
        expected, iterations = descend(operators, list(y.x), start, max_iter, tol)
        assert iterations == 4 if max_iter == 4 else 4 < iterations < 200
        found = ours.A_dagger(y, x_init=start)
        assert_close(found, expected, 1e-10, f"{max_iter} iterations")
        assert_close(ours.A_dagger(ours.own(y), x_init=start), expected, 1e-10, "owned")
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_inverse(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(inverse, world_size=world_size))


def inverse_without_start(ctx: DistributedContext) -> None:
    ours = distribute(nonlinear_operators(3), ctx)
    ours.A_dagger(ours.A(image(0)))


def inverse_with_wrong_count(ctx: DistributedContext) -> None:
    ours = distribute(nonlinear_operators(3), ctx)
    ours.A_dagger(list(ours.A(image(0)))[:2], x_init=image(0))


def declared_linear(ctx: DistributedContext) -> None:
    distribute(mixed(), ctx, type_object="linear_physics")


def with_a_mean(ctx: DistributedContext) -> None:
    distribute(mixed(), ctx, reduction="mean")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (inverse_without_start, "x_init"),
        (inverse_with_wrong_count, "expected 3 measurements"),
        (declared_linear, "not all operators are linear"),
        (with_a_mean, "linear operators only"),
    ],
)
def test_what_it_cannot_do(pool: WorkerPool, function: Any, message: str) -> None:
    for world_size in (1, 2):
        outcomes = pool.run(function, world_size=world_size, expect_error=True)
        assert_every_rank_raised(outcomes, ValueError, message)


def class_of_a_mixed_list(ctx: DistributedContext) -> list[str]:
    """Case 24 of the peer: ranks that own linear operators only must not go another way."""

    def factory(index: int, device: torch.device, options: Any) -> Physics:
        return mixed()[index]

    stacks = [
        distribute(mixed(), ctx),
        distribute(factory, ctx, type_object="physics", num_operators=4),
        distribute([*linear_operators(2), *nonlinear_operators(1)], ctx, costs=[1, 1, 100]),
        distribute([StackedLinearPhysics(linear_operators(2)), *nonlinear_operators(1)], ctx),
    ]
    for ours in stacks:
        ours.A_vjp(image(0), ours.A(image(0)))
    linear = distribute([Dense(3, seed=1), Gradients()], ctx)
    return [type(ours).__name__ for ours in (*stacks, linear)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_list_of_both_kinds(pool: WorkerPool, world_size: int) -> None:
    expected = [DistributedStackedPhysics.__name__] * 4 + [DistributedStackedLinearPhysics.__name__]
    assert pool.run(class_of_a_mixed_list, world_size=world_size) == [expected] * world_size
