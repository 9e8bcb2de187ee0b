"""Measurements that stay with their owners, and full lists: every block takes both."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from deepinv.optim import L2
from deepinv.physics import StackedLinearPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv import OwnedMeasurements, RemoteEntryError, distribute
from shardinv.context import DistributedContext
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_every_rank_raised
from tests.physics.stacks import SUMMATION, flat, image, linear_operators, random_like, unflat


def both(ctx: DistributedContext, count: int = 6) -> tuple[Any, Any]:
    return (
        StackedLinearPhysics(linear_operators(count)),
        distribute(StackedLinearPhysics(linear_operators(count)), ctx),
    )


def entries(ctx: DistributedContext) -> None:
    reference, ours = both(ctx)
    expected = reference.A(image(0))
    owned = ours.A(image(0), gather=False)
    assert isinstance(owned, OwnedMeasurements)
    assert len(owned) == 6
    assert [index for index, _ in owned.local_items()] == list(ours.ownership.mine)
    for index in range(6):
        owner = ours.ownership.owner(index)
        if owner == ctx.rank:
            assert_close(owned[index], expected[index], SUMMATION)
            assert owned[index - 6] is owned[index]
            assert owned[index : index + 1][0] is owned[index]
            continue
        for touch in (
            lambda i=index: owned[i],
            lambda i=index: owned[i - 6],
            lambda i=index: owned[i : i + 1],
        ):
            with pytest.raises(RemoteEntryError, match=rf"measurement {index} is on rank {owner}"):
                touch()
    if ctx.world_size > 1:
        with pytest.raises(RemoteEntryError, match=r"\.gather\(\)"):
            list(owned)
    with pytest.raises(IndexError):
        owned[6]
    assert f"on rank {ctx.rank}" in repr(owned)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_entry_says_who_has_it(pool: WorkerPool, world_size: int) -> None:
    pool.run(entries, world_size=world_size)


def gathered(ctx: DistributedContext, count: int) -> None:
    reference, ours = both(ctx, count)
    expected = reference.A(image(0))
    owned = ours.A(image(0), gather=False)
    full = owned.gather()
    assert isinstance(full, TensorList)
    assert [isinstance(entry, TensorList) for entry in full] == [
        isinstance(entry, TensorList) for entry in expected
    ]
    assert_close(full, expected, 0.0)
    assert owned.shape == [
        [part.shape for part in entry] if isinstance(entry, TensorList) else entry.shape
        for entry in expected
    ]
    assert owned.numel() == sum(t.numel() for t in flat(expected))
    assert owned.device == torch.device("cpu")
    # Made by hand from a full list, and of other types along the way.
    assert_close(ours.own(full).gather(), expected, 0.0)
    halved = owned.map(lambda t: t / 2)
    assert_close(halved.gather(), unflat([t / 2 for t in flat(expected)], expected), 0.0)
    single = owned.map(lambda t: t.real).to(torch.float32).gather()
    assert_close(single, unflat([t.real.float() for t in flat(expected)], expected), 0.0)
    shapeless = owned.map(lambda t: t.real.sum()).gather()
    assert_close(shapeless, unflat([t.real.sum() for t in flat(expected)], expected), 0.0)


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gather_brings_all(pool: WorkerPool, world_size: int, count: int) -> None:
    pool.run(gathered, count, world_size=world_size)


def copies(ctx: DistributedContext) -> None:
    _, ours = both(ctx)
    owned = ours.A(image(0).requires_grad_(), gather=False)
    for twin in (owned.detach(), owned.detach().clone(), copy.deepcopy(owned.detach())):
        assert isinstance(twin, OwnedMeasurements)
        assert_close(twin.gather(), owned.gather(), 0.0)
        assert not any(t.requires_grad for t in flat(twin.gather()))
    clone = owned.clone()
    assert all(t.requires_grad for t in flat(clone.gather()))
    detached = owned.detach()
    independent = copy.deepcopy(detached)
    for _, entry in detached.local_items():
        for tensor in flat(entry):
            tensor.zero_()
    assert all(t.abs().sum() > 0 for t in flat(independent.gather()))
    with pytest.raises(TypeError, match=r"cannot be pickled.*\.gather\(\)"):
        pickle.dumps(detached)


@pytest.mark.parametrize("world_size", (1, 3))
def test_copies(pool: WorkerPool, world_size: int) -> None:
    pool.run(copies, world_size=world_size)


def blocks_take_both(ctx: DistributedContext) -> None:
    operators = linear_operators(6)
    del operators[4]  # an L2 has no value for a list of measurements, undistributed neither
    reference, ours = StackedLinearPhysics(operators), distribute(operators, ctx)
    x, y = image(0), random_like(reference.A(image(0)))
    fidelity = distribute(L2(sigma=0.7), ctx)
    owned = ours.own(y)
    options = {"max_iter": 5, "tol": 1e-12}
    calls = {
        "A_adjoint": lambda y: ours.A_adjoint(y),
        "A_vjp": lambda y: ours.A_vjp(x, y),
        "A_A_adjoint": lambda y: ours.A_A_adjoint(y),
        "A_dagger": lambda y: ours.A_dagger(y, **options),
        "A_dagger by lsqr": lambda y: ours.A_dagger(y, solver="lsqr", **options),
        "prox_l2": lambda y: ours.prox_l2(x, y, 0.4, **options),
        "fn": lambda y: fidelity.fn(x, y, ours),
        "grad": lambda y: fidelity.grad(x, y, ours),
        "prox": lambda y: fidelity.prox(x, y, ours, gamma=0.4),
    }
    ours.tol = 1e-12
    for name, call in calls.items():
        expected = call(y)
        for form, given in {
            "owned": owned,
            "plain list": list(y.x),
            "clone": owned.clone(),
            "from a forward": None,
        }.items():
            if form == "from a forward":
                given = ours.A(image(2), gather=False)
                assert_close(call(given), call(given.gather()), 1e-9, f"{name} {form}")
                continue
            assert_close(call(given), expected, 1e-9, f"{name} of a {form}")
    kept_apart = {
        "A_A_adjoint": ours.A_A_adjoint(owned, gather=False),
        "noise": ours.noise(owned),
        "sensor": ours.sensor(owned),
        "grad_d": fidelity.grad_d(owned, ours.own(random_like(y, 1))),
        "prox_d": fidelity.prox_d(owned, ours.own(random_like(y, 1))),
    }
    for name, result in kept_apart.items():
        assert isinstance(result, OwnedMeasurements), name
    assert_close(kept_apart["A_A_adjoint"].gather(), reference.A_A_adjoint(y), SUMMATION)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_block_takes_both(pool: WorkerPool, world_size: int) -> None:
    pool.run(blocks_take_both, world_size=world_size)


def traffic(ctx: DistributedContext) -> list[tuple[int, int]]:
    """Full and owned lists cost the same: what is sent is the image."""
    reference, ours = both(ctx)
    y = random_like(reference.A(image(0)))
    found = []
    for given in (y, ours.A(image(0), gather=False)):
        ours.A_adjoint(given)
        ctx.ledger.reset()
        ours.A_adjoint(given)
        found.append((ctx.ledger.calls, ctx.ledger.bytes_sent))
    ctx.ledger.reset()
    ours.A(image(0), gather=False)
    found.append((ctx.ledger.calls, ctx.ledger.bytes_sent))
    ours.A(image(0))
    ctx.ledger.reset()
    ours.A(image(0))
    found.append((ctx.ledger.calls, ctx.ledger.bytes_sent))
    measured = sum(t.numel() * t.element_size() for t in flat(y))
    assert found[-1] == (1, measured * (ctx.world_size - 1) // ctx.world_size)
    return found[:3]


@pytest.mark.parametrize("world_size", (2, 3))
def test_what_is_sent(pool: WorkerPool, world_size: int) -> None:
    sent = 2 * (world_size - 1) * image(0).numel() * 8 // world_size
    for found in pool.run(traffic, world_size=world_size):
        assert found == [(1, sent), (1, sent), (0, 0)]


# -- what is refused, on every rank ----------------------------------------------------------------


def call_badly(ctx: DistributedContext, case: str) -> None:
    _, ours = both(ctx, 3)
    _, fresh = both(ctx, 3)  # agreement is looked at when a block first meets a kind of input
    x = image(0)
    y = ours.A(x)
    other = distribute(linear_operators(3), ctx, costs=[1, 1, 100])
    meta = [t.to("meta") if index == 1 else t for index, t in enumerate(y.x)]
    shorter = [t[..., : -1 - ctx.rank] for t in y.x]
    tracked = [t.clone().requires_grad_(ctx.rank == 0) for t in y.x]
    cases = {
        "too few": lambda: ours.A_adjoint(list(y.x)[:2]),
        "too many": lambda: ours.A_vjp(x, [*y.x, y[0]]),
        "too many for a solver": lambda: ours.A_dagger([*y.x, y[0]]),
        "a tensor": lambda: ours.A_adjoint(x),
        "not a list": lambda: ours.A_adjoint(3.0),
        "a missing entry": lambda: ours.A_adjoint([y[0], None, y[2]]),
        "another device": lambda: ours.A_adjoint(meta),
        "an image elsewhere": lambda: ours.A(x.to("meta")),
        "not an image": lambda: ours.A([x]),
        "measurements that differ": lambda: ours.A_adjoint(shorter),
        "gradients that differ": lambda: ours.A_adjoint(tracked),
        "images that differ": lambda: fresh.A(x[: 1 + ctx.rank]),
        "types that differ": lambda: fresh.A(x.float() if ctx.rank else x),
        "image gradients that differ": lambda: fresh.A(x.requires_grad_(ctx.rank == 1)),
        "another deal": lambda: ours.A_adjoint(other.A(x, gather=False)),
        "a reduction of measurements": lambda: ours.A(x, reduce_op="sum"),
        "a reduction in a forward": lambda: ours(x, reduce_op="sum"),
    }
    if case == "another deal":
        assert other.ownership.hands != ours.ownership.hands
    cases[case]()


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("too few", "ValueError", "expected 3 measurements, one for each operator, got 2"),
        ("too many", "ValueError", "expected 3 measurements, one for each operator, got 4"),
        ("too many for a solver", "ValueError", "expected 3 measurements"),
        ("a tensor", "TypeError", "a list of 3 tensors, got a Tensor"),
        ("not a list", "TypeError", "a list of 3 tensors, got a float"),
        ("a missing entry", "TypeError", "measurement 1 is a NoneType"),
        ("another device", "ValueError", r"measurement 1 is on meta.*y.to\(ctx.device\)"),
        ("an image elsewhere", "ValueError", r"the image is on meta.*x.to\(ctx.device\)"),
        ("not an image", "TypeError", "must be a tensor"),
        ("measurements that differ", "DisagreementError", "shapes and types of measurements"),
        ("gradients that differ", "DisagreementError", "which need a gradient"),
        ("images that differ", "DisagreementError", r"rank 0: .*\(1, 2, 7, 5\).*rank 1: .*\(2, 2"),
        ("types that differ", "DisagreementError", "float64.*float32"),
        ("image gradients that differ", "DisagreementError", "need of a gradient"),
        ("another deal", "ValueError", "dealt differently"),
        ("a reduction of measurements", "ValueError", "reduce_op must be None"),
        ("a reduction in a forward", "ValueError", "reduce_op must be None"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, kind: str, message: str) -> None:
    from shardinv import DisagreementError

    kinds = {
        "ValueError": ValueError,
        "TypeError": TypeError,
        "DisagreementError": DisagreementError,
    }
    outcomes = pool.run(call_badly, case, world_size=2, expect_error=True, timeout=20)
    assert_every_rank_raised(outcomes, kinds[kind], f"(?s){message}")


def shapes_that_differ_later(ctx: DistributedContext) -> None:
    _, ours = both(ctx, 3)
    ours.A(image(0))
    ours.A(image(0)[: 1 + ctx.rank])


def test_debug_mode_compares_shapes_at_every_call(pool: WorkerPool) -> None:
    from shardinv import DisagreementError

    outcomes = pool.run(
        shapes_that_differ_later, world_size=2, expect_error=True, context={"debug": True}
    )
    assert_every_rank_raised(outcomes, DisagreementError, "the shape, type")


def values_that_differ(ctx: DistributedContext) -> None:
    _, ours = both(ctx, 3)
    ours.A(image(ctx.rank))


def test_debug_mode_compares_values(pool: WorkerPool) -> None:
    from shardinv import DisagreementError

    outcomes = pool.run(
        values_that_differ, world_size=2, expect_error=True, context={"debug": True}
    )
    assert_every_rank_raised(outcomes, DisagreementError, "values of the image")
    pool.run(values_that_differ, world_size=2)  # not looked at otherwise
