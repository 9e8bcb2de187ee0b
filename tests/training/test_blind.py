"""Blind problems: the gradient of what operators hold or are given, on every rank or an error.

A kernel reaches an operator as a keyword argument, by ``update_parameters``, or as a tensor that it
was built with. Each way is compared with the undistributed stack.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from deepinv.physics import Blur, Downsampling, Inpainting, LinearPhysics, StackedLinearPhysics
from torch import Tensor, nn

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
    compare_with_reference,
)
from tests.physics.space.operators import draw, kernel, quiet
from tests.physics.stacks import flat, random_like, unflat

TIGHT = 1e-10
SHAPE = (1, 1, 12, 10)


class Gain(LinearPhysics):
    """Holds a weight, which another operator may hold as well."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # a plain attribute, or a parameter

    def A(self, x: Tensor, **_: Any) -> Tensor:
        return x * self.weight.tanh()

    def A_adjoint(self, y: Tensor, **_: Any) -> Tensor:
        return y * self.weight.tanh()


def blurs() -> list[Any]:
    with quiet():
        return [
            Blur(filter=kernel(1, 1, 3, 3, seed=1), padding="circular"),
            Downsampling(SHAPE[1:], filter=kernel(1, 1, 3, 3, seed=2), factor=2, padding="reflect"),
            Blur(filter=kernel(1, 1, 3, 3, seed=3), padding="valid"),
        ]


# -- kernels that are given in the call ------------------------------------------------------------


def ways(physics: Any, y: Any, shard: Callable[..., Any] = lambda x: x) -> dict[str, Any]:
    """What can be done with a kernel, for a stack; each gives tensors for an image and a kernel."""

    def whole(x: Any) -> Any:
        return x.full_tensor() if hasattr(x, "full_tensor") else x

    def full(values: Any) -> list[Tensor]:
        return [whole(values[i]) for i in range(len(values))]

    def updated(x: Tensor, h: Tensor) -> Any:
        physics.update_parameters(filter=h)
        return full(physics.A(shard(x))), whole(physics.A_adjoint_A(shard(x)))

    def kept(x: Tensor, h: Tensor) -> Any:
        physics.A(shard(x), filter=h)  # operators keep the kernel of a call
        return whole(physics.A_adjoint_A(shard(x)))

    def computed(x: Tensor, h: Tensor) -> Any:
        return full(physics.A(shard(x), filter=h / h.sum()))

    def measured(x: Tensor, h: Tensor, *entries: Tensor) -> Any:
        given = unflat([shard(e) for e in entries], y)
        return whole(physics.A_adjoint(given, filter=h)), whole(physics.A_vjp(shard(x), given))

    return {
        "A": lambda x, h: full(physics.A(shard(x), filter=h)),
        "forward": lambda x, h: full(physics(shard(x), filter=h)),
        "A_adjoint_A": lambda x, h: whole(physics.A_adjoint_A(shard(x), filter=h)),
        "update_parameters": updated,
        "kept": kept,
        "computed": computed,
        "A_adjoint": measured,
    }


def kernels_in_calls(ctx: DistributedContext, layout: str) -> None:
    sharded = layout == "sharded"
    x, h = draw(*SHAPE), kernel(1, 1, 3, 3, seed=9)
    with quiet():
        for name in ways(None, None):
            options = {"strategy": layout} if layout != "sharded" else {}
            reference, ours = StackedLinearPhysics(blurs()), distribute(blurs(), ctx, **options)
            y = random_like(reference.A(x))
            if sharded:
                ours.A(ctx.shard(x))  # shows how images lie, so that measurements can lie so
            mine = ways(ours, y, ctx.shard if sharded else lambda t: t)[name]
            theirs = ways(reference, y)[name]
            inputs = (x, h, *flat(y)) if name == "A_adjoint" else (x, h)
            if sharded and name == "A_adjoint":
                continue  # measurements that are cut on their own may lie otherwise
            compare_with_reference(mine, theirs, inputs, rtol=TIGHT)
            # The kernel alone asks for a gradient.
            leaves = [h.clone().requires_grad_() for _ in range(2)]
            results = [
                sum(t.square().sum() for t in flat(f(x, leaf, *flat(y)[: len(inputs) - 2])))
                for f, leaf in zip((mine, theirs), leaves)
            ]
            for result in results:
                result.backward()
            assert_close(leaves[0].grad, leaves[1].grad, TIGHT, name)


@pytest.mark.parametrize("layout", ["operator", "space", "sharded"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_kernels_in_calls(pool: WorkerPool, world_size: int, layout: str) -> None:
    pool.run(kernels_in_calls, layout, world_size=world_size)


def one_operator(ctx: DistributedContext) -> None:
    """By space, a single operator; a mask multiplies the noisy measurement once more."""
    x, h = draw(*SHAPE), kernel(1, 1, 3, 3, seed=9)
    y = draw(*SHAPE, seed=3)
    mask = kernel(*SHAPE, seed=4)
    with quiet():
        blur, ours = (
            f(Blur(kernel(1, 1, 3, 3), padding="circular")) for f in (lambda p: p, one(ctx))
        )
        masked, cut = (f(Inpainting(SHAPE[1:], mask=mask)) for f in (lambda p: p, one(ctx)))
        for _name, mine, theirs, inputs in (
            ("A", lambda x, h: ours.A(x, filter=h), lambda x, h: blur.A(x, filter=h), (x, h)),
            (
                "A_adjoint",
                lambda y, h: ours.A_adjoint(y, filter=h),
                lambda y, h: blur.A_adjoint(y, filter=h),
                (y, h),
            ),
            ("noise", lambda x, m: cut(x, mask=m), lambda x, m: masked(x, mask=m), (x, mask)),
        ):
            compare_with_reference(mine, theirs, inputs, rtol=TIGHT)


def one(ctx: DistributedContext) -> Callable[[Any], Any]:
    return lambda operator: distribute(operator, ctx)


@pytest.mark.parametrize("world_size", (1, 3))
def test_one_operator_by_space(pool: WorkerPool, world_size: int) -> None:
    pool.run(one_operator, world_size=world_size)


# -- tensors that operators hold -------------------------------------------------------------------


def held(start: float = 0.0) -> tuple[list[Any], list[nn.Parameter | Tensor]]:
    """Operators with trained tensors of every sort: shared, own, computed, in a closure."""
    shared = nn.Parameter(draw(*SHAPE[2:], seed=1) + start)
    own = nn.Parameter(draw(*SHAPE[2:], seed=2))
    base = draw(1, seed=3).requires_grad_()
    inside = draw(*SHAPE[2:], seed=4).requires_grad_()
    closure = LinearPhysics(A=lambda x, **_: x * inside, A_adjoint=lambda y, **_: y * inside)
    operators = [Gain(shared), Gain(own), Gain(shared), Gain(base + 1.0), closure, Gain(shared)]
    return operators, [shared, own, base, inside]


def tensors_that_operators_hold(ctx: DistributedContext) -> list[Tensor]:
    ours, mine = held(start=float(ctx.rank))  # rank 0's values count
    reference, theirs = held()
    distributed, stack = distribute(ours, ctx), StackedLinearPhysics(reference)
    x = draw(*SHAPE)
    y = random_like(stack.A(x).detach())
    fidelity, plain = distribute(L2(), ctx), StackedPhysicsDataFidelity([L2()] * 6)

    def step(physics: Any, term: Any) -> Callable[..., Any]:
        def run(x: Tensor, *entries: Tensor) -> Any:
            given = unflat(list(entries), y)
            x = x - 0.1 * term.grad(x, given, physics)
            x = x - 0.1 * term.grad(x, given, physics)
            return x, physics.A(x), physics.A_adjoint(given), term.fn(x, given, physics)

        return run

    compare_with_reference(
        step(distributed, fidelity), step(stack, plain), (x, *flat(y)), mine, theirs, rtol=TIGHT
    )
    # Steps of an optimizer change the tensors in place: the next call uses the new values.
    for physics, parameters in ((distributed, mine), (stack, theirs)):
        optimizer = torch.optim.SGD(parameters[:2], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.no_grad():
                physics.A(x)
            physics.A_adjoint_A(x).square().mean().backward()
            optimizer.step()
    assert_close(mine[:2], theirs[:2], TIGHT, "after three steps")
    # The operators hold the parameters themselves again.
    assert all(op.weight is mine[0] for op in (ours[0], ours[2], ours[5]))
    return [tensor.detach() for tensor in mine]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_tensors_that_operators_hold(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(tensors_that_operators_hold, world_size=world_size))


def one_reduction(ctx: DistributedContext) -> tuple[int, int]:
    """However often the operators are called, their tensors' gradients are summed once."""
    found = []
    for calls in (1, 4):
        operators, _ = held()
        physics, x = distribute(operators, ctx), draw(*SHAPE)
        loss = sum(physics.A_adjoint_A(x).square().sum() for _ in range(calls))
        ctx.ledger.reset()
        loss.backward()
        found.append(
            sum(row["calls"] for row in ctx.ledger.table() if "agreement" not in row["block"])
        )
    return found[0], found[1]


def test_one_reduction_for_many_calls(pool: WorkerPool) -> None:
    assert set(pool.run(one_reduction, world_size=2)) == {(1, 1)}


def copies(ctx: DistributedContext) -> None:
    """A copy has parameters of its own."""
    parameter = nn.Parameter(draw(*SHAPE[2:]))
    physics = distribute([Gain(parameter), Gain(parameter)], ctx)
    physics.A_adjoint_A(draw(*SHAPE)).sum().backward()
    before = parameter.grad.clone()
    twin = deepcopy(physics)
    twin.A_adjoint_A(draw(*SHAPE)).sum().backward()
    assert_close(parameter.grad, before, 0.0)
    (copied,) = twin.trained._shared
    assert copied is not parameter
    assert_close(copied.grad, before, TIGHT)


def test_copies(pool: WorkerPool) -> None:
    pool.run(copies, world_size=2)


def given_by_space(ctx: DistributedContext) -> None:
    """Every rank uses an operator's parameters on its box, also those that a factory made."""
    x = draw(*SHAPE)

    def make(index: int, *_: Any) -> Any:
        return Blur(nn.Parameter(kernel(1, 1, 3, 3, seed=index) + ctx.rank), padding="circular")

    with quiet():
        ours = distribute(make, ctx, type_object="physics", num_operators=2, strategy="space")
        reference = StackedLinearPhysics([Blur(kernel(1, 1, 3, 3, seed=i)) for i in range(2)])
    for blur in reference.physics_list:
        blur.padding, blur.filter = "circular", blur.filter.requires_grad_()
    mine = [stage.filter for op in ours.physics_list for stage in op.branch.stages]
    compare_with_reference(
        ours.A_adjoint_A,
        reference.A_adjoint_A,
        x,
        mine,
        [blur.filter for blur in reference.physics_list],
        rtol=TIGHT,
    )


@pytest.mark.parametrize("world_size", (1, 3))
def test_parameters_by_space(pool: WorkerPool, world_size: int) -> None:
    pool.run(given_by_space, world_size=world_size)


# -- factories -------------------------------------------------------------------------------------


def owned_parameters(ctx: DistributedContext) -> int:
    """What a factory makes anew is its owner's: right there, and no other rank waits."""
    made: dict[int, nn.Parameter] = {}

    def make(index: int, *_: Any) -> Gain:
        torch.rand(1)
        gain = Gain(nn.Parameter(draw(*SHAPE[2:], seed=index)))
        made[index] = gain.weight
        return gain

    torch.manual_seed(0)
    physics = distribute(make, ctx, type_object="physics", num_operators=3)
    held = {index: op.weight for index, op in physics.operators.local_items()}
    reference = [Gain(nn.Parameter(draw(*SHAPE[2:], seed=i))) for i in range(3)]
    x = draw(*SHAPE)
    for ask in (False, True):
        loss = physics.A_adjoint_A(x.clone().requires_grad_(ask)).square().sum()
        assert loss.requires_grad, "on every rank"
        loss.backward()
        StackedLinearPhysics(reference).A_adjoint_A(x).square().sum().backward()
    for index, weight in held.items():
        assert_close(weight.grad, reference[index].weight.grad, TIGHT)
    return len(held)


@pytest.mark.parametrize("world_size", (2, 4))
def test_parameters_of_a_factory(pool: WorkerPool, world_size: int) -> None:
    assert sum(pool.run(owned_parameters, world_size=world_size)) == 3


# -- what is refused, on every rank ----------------------------------------------------------------


def lose_a_gradient(ctx: DistributedContext, case: str) -> None:
    x, h = draw(*SHAPE), nn.Parameter(draw(*SHAPE[2:]))
    factory = {"type_object": "physics", "num_operators": 3}
    gains = [Gain(draw(*SHAPE[2:])) for _ in range(2)]

    def set_afterwards() -> None:
        physics = distribute(gains, ctx)
        gains[0].weight = h
        physics.A(x)

    cases: dict[str, Callable[[], Any]] = {
        "shared by a factory": lambda: distribute(lambda *_: Gain(h), ctx, **factory),
        "computed in a factory": lambda: distribute(lambda *_: Gain(h * 2), ctx, **factory),
        "of one operator of a factory": lambda: distribute(
            lambda index, *_: Gain(h if index == 2 else torch.ones(1)), ctx, **factory
        ),
        "set afterwards": set_afterwards,
        "on one rank": lambda: distribute(blurs(), ctx).A(
            x, filter=kernel(1, 1, 3, 3).requires_grad_(ctx.rank == 0)
        ),
        "other parameters": lambda: distribute(
            [Gain(nn.Parameter(torch.ones(1 + ctx.rank))), *gains], ctx
        ),
    }
    cases[case]()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("shared by a factory", "exists outside the factory.*keyword argument.*list"),
        ("computed in a factory", "exists outside the factory"),
        ("of one operator of a factory", "gives operator 2"),
        ("on one rank", "tensors given as options"),
        ("other parameters", "different parameters"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, message: str) -> None:
    outcomes = pool.run(lose_a_gradient, case, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, message)


def test_a_tensor_that_others_do_not_know_of(pool: WorkerPool) -> None:
    """The owner alone can see it: it raises, and that ends the others too."""
    outcomes = pool.run(lose_a_gradient, "set afterwards", world_size=2, expect_error=True)
    assert any("the other ranks do not know" in str(outcome) for outcome in outcomes)
