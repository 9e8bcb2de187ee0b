"""Stacks of linear operators: values, adjoints and gradients are the undistributed stack's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.physics import StackedLinearPhysics, StackedPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv import DistributedStackedLinearPhysics, DistributedStackedPhysics, distribute
from shardinv.context import DistributedContext
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    adjoint_dot_test,
    assert_close,
    assert_same_on_every_rank,
    compare_with_reference,
)
from tests.physics.stacks import (
    SUMMATION,
    flat,
    image,
    linear_operators,
    quiet,
    random_like,
    unflat,
)


def both(
    ctx: DistributedContext, count: int, reduction: str | None = "sum"
) -> tuple[StackedLinearPhysics, DistributedStackedLinearPhysics]:
    with quiet():
        reference = StackedLinearPhysics(linear_operators(count), reduction=reduction)
        ours = distribute(StackedLinearPhysics(linear_operators(count), reduction=reduction), ctx)
    return reference, ours


def image_maps(
    reference: Any, ours: Any, y: Any
) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]]:
    """Every method as a function of tensors, of the reference and of ours."""

    def of_list(function: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda *tensors: function(unflat(list(tensors), y))

    def of_owned(function: Callable[[Any], Any]) -> Callable[..., Any]:
        """Measurements that never leave their owner; only the image is a leaf."""
        return lambda x: function(ours.A(x, gather=False).map(lambda t: t * t))

    x, v = image(0), tuple(flat(y))
    maps = {
        "A": (reference.A, ours.A, x),
        "forward": (reference, ours, x),
        "A_adjoint": (of_list(reference.A_adjoint), of_list(ours.A_adjoint), v),
        "A_vjp": (
            lambda x, *v: reference.A_vjp(x, unflat(list(v), y)),
            lambda x, *v: ours.A_vjp(x, unflat(list(v), y)),
            (x, *v),
        ),
        "A_adjoint_A": (reference.A_adjoint_A, ours.A_adjoint_A, x),
        "A_adjoint of owned": (
            lambda x: reference.A_adjoint(_squares(reference.A(x))),
            of_owned(ours.A_adjoint),
            x,
        ),
        "gather of owned": (
            lambda x: _squares(reference.A(x)),
            of_owned(lambda owned: owned.gather()),
            x,
        ),
    }
    if getattr(ours, "reduction_name", "sum") is not None:
        maps["A_A_adjoint"] = (of_list(reference.A_A_adjoint), of_list(ours.A_A_adjoint), v)
    return maps


def _squares(y: Any) -> Any:
    return unflat([t * t for t in flat(y)], y)


def compare_everything(ctx: DistributedContext, count: int, reduction: str | None) -> None:
    reference, ours = both(ctx, count, reduction)
    assert isinstance(ours, StackedLinearPhysics)
    assert isinstance(ours, DistributedStackedLinearPhysics)
    assert len(ours) == count
    y = random_like(reference.A(image(0)))
    for name, (theirs, mine, arguments) in image_maps(reference, ours, y).items():
        try:
            compare_with_reference(mine, theirs, arguments, rtol=SUMMATION)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize(
    ("count", "reduction"), [(6, "sum"), (3, "sum"), (1, "sum"), (2, "mean"), (3, None)]
)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_values_and_gradients(
    pool: WorkerPool, world_size: int, count: int, reduction: str | None
) -> None:
    pool.run(compare_everything, count, reduction, world_size=world_size)


def dot_tests(ctx: DistributedContext, count: int) -> None:
    reference, ours = both(ctx, count)
    x, y = image(1), random_like(reference.A(image(1)), seed=1)
    adjoint_dot_test(ours.A, ours.A_adjoint, x, y, rtol=1e-12)
    # The same with lists that know their owner: this rank's part of the inner product, summed.
    owned = ours.own(y)
    one = ours.A(x, gather=False)
    mine = sum(
        (a.conj() * b).sum().real
        for (_, left), (_, right) in zip(one.local_items(), owned.local_items())
        for a, b in zip(flat(left), flat(right))
    )
    total = ctx.all_reduce(torch.zeros((), dtype=torch.float64) + mine)
    back = (x * ours.A_adjoint(owned)).sum()
    assert abs(total - back) <= 1e-12 * x.norm() * ours.A_adjoint(owned).norm()


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_adjoint(pool: WorkerPool, world_size: int, count: int) -> None:
    pool.run(dot_tests, count, world_size=world_size)


def jacobians(ctx: DistributedContext) -> None:
    reference, ours = both(ctx, 6)
    assert_close(ours.A_jvp(image(0), image(1)), reference.A(image(1)), SUMMATION)
    owned = ours.A_jvp(image(0), image(1), gather=False)
    assert_close(owned.gather(), reference.A(image(1)), SUMMATION)


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_jacobian_of_a_linear_stack_is_the_stack(pool: WorkerPool, world_size: int) -> None:
    pool.run(jacobians, world_size=world_size)


def parts(ctx: DistributedContext) -> list[torch.Tensor]:
    """Each rank's part, not summed, of everything that has one."""
    reference, ours = both(ctx, 5)
    x, y = image(0), random_like(reference.A(image(0)))
    whole = {
        "A_adjoint": reference.A_adjoint(y),
        "A_vjp": reference.A_vjp(x, y),
        "A_adjoint_A": reference.A_adjoint_A(x),
    }
    calls = {
        "A_adjoint": lambda **k: ours.A_adjoint(y, **k),
        "A_vjp": lambda **k: ours.A_vjp(x, y, **k),
        "A_adjoint_A": lambda **k: ours.A_adjoint_A(x, **k),
    }
    for name, call in calls.items():
        for options in ({"gather": False}, {"reduce_op": None}):
            total = ctx.all_reduce(call(**options).clone())
            assert_close(total, whole[name], SUMMATION, f"{name} with {options}")
    return []


@pytest.mark.parametrize("world_size", (1, 3))
def test_parts_of_a_sum(pool: WorkerPool, world_size: int) -> None:
    pool.run(parts, world_size=world_size)


def results_of_a_call(ctx: DistributedContext) -> list[Any]:
    _, ours = both(ctx, 6)
    y = ours.A(image(0))
    assert isinstance(y, TensorList)
    assert isinstance(y[4], TensorList)
    return [flat(y), ours.A_adjoint(y), ours.A_dagger(y, max_iter=5)]


@pytest.mark.parametrize("world_size", (2, 3, 4))
def test_every_rank_gets_the_same_bits(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(results_of_a_call, world_size=world_size))


def inputs_are_left_alone(ctx: DistributedContext) -> None:
    _, ours = both(ctx, 6)
    x = image(0)
    y = ours.A(x)
    before = [x.clone(), *(t.clone() for t in flat(y))]
    for call in (
        lambda: ours.A(x),
        lambda: ours(x),
        lambda: ours.A_adjoint(y),
        lambda: ours.A_adjoint_A(x),
        lambda: ours.A_A_adjoint(y),
        lambda: ours.A_dagger(y, max_iter=3),
        lambda: ours.prox_l2(x, y, 0.5, max_iter=3),
        lambda: ours.noise(y),
        lambda: ours.sensor(y),
    ):
        call()
        assert_close([x, *flat(y)], before, 0.0, "inputs")
        assert not x.requires_grad


@pytest.mark.parametrize("world_size", (1, 3))
def test_inputs_are_left_alone(pool: WorkerPool, world_size: int) -> None:
    pool.run(inputs_are_left_alone, world_size=world_size)


def identity_keeps_its_input(ctx: DistributedContext) -> None:
    """An operator that returns its very input: the sum must not be made inside it."""
    from deepinv.physics import LinearPhysics

    for count in (1, 2, 3):
        identity = LinearPhysics(A_adjoint=lambda y, **_: y)
        ours = distribute([identity] * count, ctx)
        x = image(0)
        kept = x.clone()
        assert_close(ours.A_adjoint_A(x), count * kept, 0.0, f"{count} identities")
        assert_close(ours.A_adjoint([x] * count), count * kept, 0.0, f"{count} identities")
        assert_close(x, kept, 0.0, "the image")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_operator_that_returns_its_input(pool: WorkerPool, world_size: int) -> None:
    pool.run(identity_keeps_its_input, world_size=world_size)


def mean_is_kept(ctx: DistributedContext) -> None:
    """Case 10 of the peer: a stack's own reduction survives, an option replaces it."""
    operators = linear_operators(4)
    x = image(0)
    with quiet():
        mean = StackedLinearPhysics(operators, reduction="mean")
        total = StackedLinearPhysics(operators)
    kept = distribute(mean, ctx)
    assert kept.reduction_name == "mean"
    assert_close(kept.A_adjoint_A(x), mean.A_adjoint_A(x), SUMMATION)
    replaced = distribute(mean, ctx, reduction="sum")
    assert_close(replaced.A_adjoint_A(x), total.A_adjoint_A(x), SUMMATION)
    listed = distribute(operators, ctx, reduction="mean")
    assert_close(listed.A_adjoint_A(x), mean.A_adjoint_A(x), SUMMATION)
    assert_close(distribute(operators, ctx).A_adjoint_A(x), total.A_adjoint_A(x), SUMMATION)
    images = distribute(operators, ctx, reduction="none").A_adjoint_A(x)
    assert isinstance(images, list)
    assert_close(images, [op.A_adjoint_A(x) for op in operators], SUMMATION)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduction_is_kept(pool: WorkerPool, world_size: int) -> None:
    pool.run(mean_is_kept, world_size=world_size)


def mixed_types_of_images(ctx: DistributedContext) -> None:
    """Adjoints of unequal types are promoted as an undistributed sum promotes them."""
    from deepinv.physics import LinearPhysics

    real = LinearPhysics(A_adjoint=lambda y, **_: y)
    turn = LinearPhysics(A=lambda x, **_: 1j * x, A_adjoint=lambda y, **_: -1j * y)
    for operators in ([real, turn], [turn, real, real, real, turn], [real, real, turn]):
        x = image(0)
        reference = StackedLinearPhysics(operators)
        ours = distribute(operators, ctx)
        assert_close(ours.A(x), reference.A(x), 0.0)
        compare_with_reference(ours.A_adjoint_A, reference.A_adjoint_A, x, rtol=SUMMATION)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_adjoints_of_unequal_types(pool: WorkerPool, world_size: int) -> None:
    pool.run(mixed_types_of_images, world_size=world_size)


def is_found_in_many_forms(ctx: DistributedContext) -> None:
    """Nested stacks and lists are opened, as DeepInverse opens them."""
    operators = linear_operators(4)
    x = image(0)
    expected = StackedLinearPhysics(operators)
    forms: dict[str, Any] = {
        "a list": operators,
        "a tuple": tuple(operators),
        "a stack": StackedLinearPhysics(operators),
        "a stack that doesn't know that it is linear": StackedPhysics(operators),
        "a stack of stacks": StackedLinearPhysics(
            [StackedLinearPhysics(operators[:2]), operators[2], StackedPhysics(operators[3:])]
        ),
        "a list with a stack": [StackedLinearPhysics(operators[:3]), operators[3]],
    }
    for name, form in forms.items():
        ours = distribute(form, ctx)
        assert isinstance(ours, DistributedStackedLinearPhysics), name
        assert len(ours) == 4, name
        assert_close(ours.A(x), expected.A(x), 0.0, name)
        assert_close(ours.A_adjoint_A(x), expected.A_adjoint_A(x), SUMMATION, name)
    linear = distribute(operators, ctx, type_object="linear_physics")
    assert isinstance(linear, DistributedStackedPhysics)
    again = distribute(operators, ctx, type_object="physics", gather_strategy="naive")
    assert_close(again.A(x), expected.A(x), 0.0, "with gather_strategy")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_forms_of_a_stack(pool: WorkerPool, world_size: int) -> None:
    pool.run(is_found_in_many_forms, world_size=world_size)
