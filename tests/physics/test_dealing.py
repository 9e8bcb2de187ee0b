"""How operators are built and dealt: on their owner only, by cost, in the type asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import Physics, StackedLinearPhysics

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_every_rank_raised
from tests.physics.stacks import (
    IMAGE,
    SUMMATION,
    Dense,
    image,
    linear_operators,
    nonlinear_operators,
)


class Factory:
    """Makes the operators of a list, and remembers which it was asked for, and with what."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.options: list[Any] = []

    def __call__(self, index: int, device: torch.device, options: Any) -> Physics:
        assert device == torch.device("cpu")
        self.made.append(index)
        self.options.append(options)
        return linear_operators(5)[index]


def build_from_a_factory(ctx: DistributedContext, count: int) -> tuple[list[int], list[int]]:
    factory = Factory()
    options = {"angle": 3}
    ours = distribute(
        factory, ctx, type_object="physics", num_operators=count, factory_kwargs=options
    )
    reference = StackedLinearPhysics(linear_operators(count))
    assert_close(ours.A(image(0)), reference.A(image(0)), 0.0)
    assert_close(ours.A_adjoint_A(image(0)), reference.A_adjoint_A(image(0)), SUMMATION)
    assert all(given is options for given in factory.options)
    return factory.made, list(ours.ownership.mine)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_factory_builds_each_operator_once(pool: WorkerPool, world_size: int, count: int) -> None:
    results = pool.run(build_from_a_factory, count, world_size=world_size)
    assert all(made == mine for made, mine in results)
    assert sorted(index for made, _ in results for index in made) == list(range(count))
    sizes = [len(made) for made, _ in results]
    assert max(sizes) - min(sizes) <= 1


def hands(ctx: DistributedContext, sizes: list[int], costs: list[float] | None) -> Any:
    ours = distribute([Dense(n, seed=n) for n in sizes], ctx, costs=costs)
    return ours.ownership.hands, ours.costs, ours.describe()


def test_operators_are_dealt_by_the_size_of_their_parameters(pool: WorkerPool) -> None:
    sizes = [1, 40, 2, 21, 20, 3]  # round-robin would give 23 and 64 rows
    for found, _, text in pool.run(hands, sizes, None, world_size=2):
        rows = sorted(sum(sizes[index] for index in hand) for hand in found)
        assert rows == [43, 44]
        assert sorted(index for hand in found for index in hand) == list(range(6))
        assert "6 linear operators on 2 ranks" in text
        assert "imbalance 1.0" in text


def test_operators_are_dealt_by_costs_that_are_given(pool: WorkerPool) -> None:
    results = pool.run(hands, [40, 1, 1, 1], [1, 1, 1, 3], world_size=2)
    assert len({repr(result) for result in results}) == 1
    found, costs, _ = results[0]
    assert sorted(found) == [(0, 1, 2), (3,)]
    assert costs == (1.0, 1.0, 1.0, 3.0)


class TwoTypes(Dense):
    """A dense operator with complex, whole and boolean buffers beside its matrix."""

    def __init__(self) -> None:
        super().__init__(6, seed=5)
        self.register_buffer("weights", torch.full((6,), 1 + 2j, dtype=torch.complex128))
        self.register_buffer("indices", torch.arange(6))
        self.register_buffer("kept", torch.ones(6, dtype=torch.bool))


def convert(ctx: DistributedContext) -> dict[str, str]:
    ours = distribute([TwoTypes()], ctx, dtype=torch.float32)
    found = {}
    for _, op in ours.operators.local_items():
        found = {name: str(buffer.dtype) for name, buffer in op.named_buffers() if name[0] != "_"}
        assert_close(op.weights, TwoTypes().weights, 0.0, "complex buffer")
    y = ours.A(image(0).float())
    assert y[0].dtype == torch.float32
    left = distribute([TwoTypes()], ctx)
    assert left.A(image(0))[0].dtype == torch.float64
    return found


def test_a_type_is_given_to_real_values_only(pool: WorkerPool) -> None:
    expected = {
        "matrix": "torch.float32",
        "weights": "torch.complex128",
        "indices": "torch.int64",
        "kept": "torch.bool",
    }
    assert pool.run(convert, world_size=1) == [expected]
    assert [found for found in pool.run(convert, world_size=2) if found] == [expected]


def access_to_operators(ctx: DistributedContext) -> None:
    ours = distribute(linear_operators(5), ctx)
    assert len(ours.physics_list) == 5
    for index in range(5):
        if index in ours.ownership.mine:
            assert isinstance(ours[index], Physics)
            assert ours.physics_list[index] is ours[index]
            continue
        for touch in (lambda i=index: ours[i], lambda i=index: ours.physics_list[i - 5]):
            with pytest.raises(LookupError, match=f"operator {index} is on rank"):
                touch()
    assert str(ctx.world_size) in str(ours)


def test_an_operator_is_where_it_was_dealt_to(pool: WorkerPool) -> None:
    for world_size in (1, 3):
        pool.run(access_to_operators, world_size=world_size)


def parameters_are_updated(ctx: DistributedContext) -> None:
    new = torch.rand(IMAGE, generator=torch.Generator().manual_seed(5)).double()
    reference = StackedLinearPhysics(linear_operators(5))
    ours = distribute(linear_operators(5), ctx)
    reference.update_parameters(mask=new)
    ours.update_parameters(mask=new)
    assert_close(ours.A(image(0)), reference.A(image(0)), 0.0)
    # Also along the way, as DeepInverse's operators take them.
    newer = new.square()
    x = image(0)
    assert_close(ours.A(x, mask=newer), reference.A(x, mask=newer), 0.0)
    assert_close(ours.A(x), reference.A(x), 0.0)


@pytest.mark.filterwarnings("ignore:.*different device")
@pytest.mark.parametrize("world_size", (1, 3))
def test_parameters_of_operators_are_updated(pool: WorkerPool, world_size: int) -> None:
    pool.run(parameters_are_updated, world_size=world_size)


# -- what is refused, on every rank ----------------------------------------------------------------


def distribute_badly(ctx: DistributedContext, case: str) -> None:
    operators = linear_operators(3)
    factory = Factory()
    physics: dict[str, Any] = {"type_object": "physics"}
    cases = {
        "count of a list": lambda: distribute(operators, ctx, num_operators=2),
        "count of a factory": lambda: distribute(factory, ctx, **physics),
        "no operator": lambda: distribute(factory, ctx, num_operators=0, **physics),
        "costs": lambda: distribute(operators, ctx, costs=[1.0, 2.0]),
        "kind of an entry": lambda: distribute([*operators, torch.nn.Identity()], ctx),
        "kind of a factory": lambda: distribute(
            lambda *_: torch.nn.Identity(), ctx, num_operators=4, **physics
        ),
        "a factory of what": lambda: distribute(factory, ctx, num_operators=3),
        "one operator": lambda: distribute(operators[0], ctx),
        "unknown option": lambda: distribute(operators, ctx, reductions="mean"),
        "an option of others": lambda: distribute(operators, ctx, patch_size=32),
        "reduction": lambda: distribute(operators, ctx, reduction="max"),
        "gather_strategy": lambda: distribute(operators, ctx, gather_strategy="ring"),
        "type_object": lambda: distribute(operators, ctx, type_object="operators"),
        "context": lambda: distribute(operators, None),  # type: ignore[arg-type]
        "ranks": lambda: distribute(linear_operators(3 + ctx.rank), ctx),
        "linearity": lambda: distribute(nonlinear_operators(2), ctx, type_object="linear_physics"),
    }
    cases[case]()


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("count of a list", ValueError, "num_operators=2, but 3 operators"),
        ("count of a factory", ValueError, "needs num_operators="),
        ("no operator", ValueError, "at least one operator"),
        ("costs", ValueError, "2 costs are given for 3 operators"),
        ("kind of an entry", TypeError, "operator 3 is a Identity"),
        ("kind of a factory", TypeError, "the factory made a Identity"),
        ("a factory of what", ValueError, "give type_object='physics'"),
        ("one operator", ValueError, "cannot be dealt to ranks: give a list"),
        ("unknown option", TypeError, "no option reductions"),
        ("an option of others", TypeError, "patch_size has no meaning for physics"),
        ("reduction", ValueError, "got 'max'"),
        ("gather_strategy", ValueError, "got 'ring'"),
        ("type_object", ValueError, "got 'operators'"),
        ("context", TypeError, "DistributedContext"),
        ("ranks", ValueError, r"different numbers of operators: \[3, 4\]"),
        ("linearity", ValueError, "not all operators are linear"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, kind: Any, message: str) -> None:
    outcomes = pool.run(distribute_badly, case, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, kind, message)
