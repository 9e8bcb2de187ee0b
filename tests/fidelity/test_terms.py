"""Values and gradients of every fidelity: those of ``StackedPhysicsDataFidelity``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.optim import DataFidelity
from deepinv.optim.data_fidelity import (
    L1,
    L2,
    AmplitudeLoss,
    IndicatorL2,
    LogPoissonLikelihood,
    PoissonLikelihood,
    StackedPhysicsDataFidelity,
    ZeroFidelity,
)
from deepinv.physics import LinearPhysics, StackedLinearPhysics, StackedPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv import DistributedDataFidelity, distribute
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
    flat,
    image,
    linear_operators,
    nonlinear_operators,
    positive_image,
    random_like,
    unflat,
)


def fourth_power(u: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (u - y).pow(4).flatten(1).sum(1)


FIDELITIES: dict[str, Callable[[], DataFidelity]] = {
    "L2": lambda: L2(sigma=0.4),
    "L1": L1,
    "Poisson": lambda: PoissonLikelihood(gain=0.5, bkg=0.1, denormalize=True),
    "amplitude": AmplitudeLoss,
    "log Poisson": lambda: LogPoissonLikelihood(N0=4.0, mu=0.2),
    "zero": ZeroFidelity,
    "a user's own": lambda: DataFidelity(d=fourth_power),
}


def positive_operators(count: int) -> list[LinearPhysics]:
    """Operators of positive images and measurements, for logarithms and roots."""
    made = [Dense(7 + 2 * number, seed=number) for number in range(count)]
    for op in made:
        op.matrix = op.matrix.abs()
    return made


def measurements(operators: list[Any]) -> TensorList:
    clean = StackedPhysics(operators).A(positive_image(9))
    return unflat([t * (1 + 0.1 * torch.cos(t)) for t in flat(clean)], clean)


def as_functions(fidelity: Any, name: str, physics: Any, y: Any) -> Callable[..., torch.Tensor]:
    return lambda x, *v: getattr(fidelity, name)(x, unflat(list(v), y), physics)


def compare_everything(ctx: DistributedContext, count: int) -> None:
    physics = StackedLinearPhysics(positive_operators(count))
    ours = distribute(StackedLinearPhysics(positive_operators(count)), ctx)
    y = measurements(positive_operators(count))
    for kind, make in FIDELITIES.items():
        reference = StackedPhysicsDataFidelity([make() for _ in range(count)])
        fidelity = distribute(make(), ctx)
        assert isinstance(fidelity, DataFidelity)
        assert isinstance(fidelity, DistributedDataFidelity)
        for name in ("fn", "grad"):
            theirs = as_functions(reference, name, physics, y)
            mine = as_functions(fidelity, name, ours, y)
            arguments = (positive_image(0), *flat(y))
            try:
                if kind == "zero" or (kind == "L1" and name == "grad"):
                    # Constant: nothing to differentiate.
                    assert_close(mine(*arguments), theirs(*arguments), 1e-11)
                    continue
                compare_with_reference(mine, theirs, arguments, rtol=1e-11)
            except (AssertionError, RuntimeError) as error:
                raise AssertionError(f"{name} of {kind}: {error}") from error
        x = positive_image(0)
        assert_close(fidelity(x, y, ours), reference.fn(x, y, physics), 1e-11, kind)
        owned = ours.own(y)
        assert_close(fidelity.fn(x, owned, ours), reference.fn(x, y, physics), 1e-11, kind)
        assert_close(fidelity.grad(x, owned, ours), reference.grad(x, y, physics), 1e-11, kind)
        for part, whole in (
            (fidelity.fn(x, y, ours, gather=False), reference.fn(x, y, physics)),
            (fidelity.grad(x, y, ours, gather=False), reference.grad(x, y, physics)),
        ):
            assert_close(ctx.all_reduce(part.detach().clone()), whole, 1e-11, f"parts of {kind}")
        assert not x.requires_grad


@pytest.mark.parametrize(("world_size", "count"), [(1, 3), (2, 3), (3, 2), (4, 3)])
def test_values_and_gradients(pool: WorkerPool, world_size: int, count: int) -> None:
    pool.run(compare_everything, count, world_size=world_size)


def indicator(ctx: DistributedContext) -> None:
    """Its value is 0 or 1e16 for each operator, and has no gradient."""
    physics = StackedLinearPhysics(linear_operators(3))
    ours = distribute(linear_operators(3), ctx)
    x, y = image(0), physics.A(image(1))
    fidelity = distribute(IndicatorL2(radius=5.0), ctx)
    reference = StackedPhysicsDataFidelity([IndicatorL2(radius=5.0)] * 3)
    for radius in (1.0, 6.0, 1e3):
        assert_close(
            fidelity.fn(x, y, ours, radius=radius),
            reference.fn(x, y, physics, radius=radius),
            0.0,
            f"radius {radius}",
        )
    assert_close(fidelity.fn(x, y, ours), reference.fn(x, y, physics), 0.0)


@pytest.mark.parametrize("world_size", (1, 4))
def test_indicator(pool: WorkerPool, world_size: int) -> None:
    pool.run(indicator, world_size=world_size)


SIGMAS = (0.3, 1.0, 2.5)


def one_for_each(ctx: DistributedContext) -> tuple[list[int], list[int]]:
    """Stacked fidelities, lists and factories, of unequal kinds and noise levels."""
    terms = [*(L2(sigma=sigma) for sigma in SIGMAS), DataFidelity(d=fourth_power)]
    made: list[int] = []

    def factory(index: int, device: torch.device, options: Any) -> DataFidelity:
        assert options == {"scale": 2}
        made.append(index)
        return terms[index]

    physics = StackedLinearPhysics(linear_operators(4))
    ours = distribute(linear_operators(4), ctx)
    y = random_like(physics.A(image(0)))
    reference = StackedPhysicsDataFidelity(terms)
    forms = {
        "stacked": distribute(StackedPhysicsDataFidelity(terms), ctx),
        "a list": distribute(list(terms), ctx),
        "a counted list": distribute(list(terms), ctx, num_operators=4),
        "a factory": distribute(
            factory, ctx, type_object="data_fidelity", num_operators=4, factory_kwargs={"scale": 2}
        ),
    }
    for form, fidelity in forms.items():
        for name in ("fn", "grad"):
            try:
                compare_with_reference(
                    as_functions(fidelity, name, ours, y),
                    as_functions(reference, name, physics, y),
                    (image(0), *flat(y)),
                    rtol=1e-11,
                )
            except AssertionError as error:
                raise AssertionError(f"{name} of {form}: {error}") from error
        # The mean is an option; undistributed fidelities of a list have none.
    mean = distribute(list(terms), ctx, reduction="mean")
    assert_close(mean.fn(image(0), y, ours), reference.fn(image(0), y, physics) / 4, 1e-11)
    return sorted(set(made)), list(ours.ownership.mine)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_one_fidelity_for_each_operator(pool: WorkerPool, world_size: int) -> None:
    for made, mine in pool.run(one_for_each, world_size=world_size):
        assert made == mine


def stacks_of_other_kinds(ctx: DistributedContext) -> None:
    """Operators that aren't linear, complex measurements, and a stack with a mean."""
    from tests.physics.stacks import quiet

    x = image(0)
    for name, operators in {
        "nonlinear": nonlinear_operators(3),
        "mixed": [*linear_operators(1), *nonlinear_operators(2)],
        "complex": [Spectrum(seed=1), Dense(9, seed=2), Spectrum(seed=3)],
    }.items():
        physics, ours = StackedPhysics(operators), distribute(operators, ctx)
        reference = StackedPhysicsDataFidelity([L2(sigma=0.4)] * 3)
        fidelity = distribute(L2(sigma=0.4), ctx)
        y = random_like(physics.A(x))
        for method in ("fn", "grad"):
            compare_with_reference(
                as_functions(fidelity, method, ours, y),
                as_functions(reference, method, physics, y),
                (x, *flat(y)),
                rtol=1e-11,
                second_order=name != "complex" or method == "fn",
            )
    nested = [Gradients(), Dense(9, seed=2)]
    y = random_like(StackedPhysics(nested).A(x))
    mine = distribute(L2(sigma=0.4), ctx).grad(x, y, distribute(nested, ctx))
    assert_close(mine, L2(sigma=0.4).grad(x, y, StackedLinearPhysics(nested)), 1e-11)
    with quiet():
        physics = StackedLinearPhysics(linear_operators(3), reduction="mean")
        ours = distribute(physics, ctx)
    y = random_like(physics.A(x))
    fidelity = distribute(L2(sigma=0.4), ctx)
    # The undistributed L2 takes the stack's mean, through its adjoint.
    assert_close(fidelity.grad(x, y, ours), L2(sigma=0.4).grad(x, y, physics), 1e-11)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(fidelity.fn(leaf, y, ours).sum(), leaf)
    assert_close(slope, fidelity.grad(x, y, ours), 1e-11, "fn fits grad")
    total = distribute(L2(sigma=0.4), ctx, reduction="sum")
    assert_close(total.grad(x, y, ours), 3 * fidelity.grad(x, y, ours), 1e-11)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_stacks_of_other_kinds(pool: WorkerPool, world_size: int) -> None:
    pool.run(stacks_of_other_kinds, world_size=world_size)


def distances(ctx: DistributedContext) -> None:
    """``grad_d``, ``prox_d`` and ``prox_d_conjugate`` act entry by entry, on lists of any kind."""
    operators = positive_operators(3)
    ours = distribute(operators, ctx)
    y = measurements(operators)
    u = unflat([t * 1.3 for t in flat(y)], y)
    for kind in ("L2", "L1", "Poisson"):
        term, fidelity = FIDELITIES[kind](), distribute(FIDELITIES[kind](), ctx)
        for name in ("grad_d", "prox_d", "prox_d_conjugate"):
            options = {} if name == "grad_d" else {"gamma": 0.7}
            expected = [getattr(term, name)(u[i], y[i], **options) for i in range(3)]
            full = getattr(fidelity, name)(u, y, **options)
            assert isinstance(full, TensorList)
            assert_close(full, expected, SUMMATION, f"{name} of {kind}")
            owned = getattr(fidelity, name)(ours.own(u), ours.own(y), **options)
            assert_close(owned.gather(), expected, SUMMATION, f"{name} of {kind}, owned")
            single = getattr(fidelity, name)(u[0], y[0], **options)
            assert_close(single, expected[0], SUMMATION, f"{name} of {kind}, one tensor")
    each = distribute([L2(sigma=sigma) for sigma in SIGMAS], ctx)
    expected = [L2(sigma=s).grad_d(u[i], y[i]) for i, s in enumerate(SIGMAS)]
    assert_close(each.grad_d(u, y), expected, SUMMATION)
    assert_close(each.grad_d(ours.own(u), y).gather(), expected, SUMMATION)


@pytest.mark.parametrize("world_size", (1, 3))
def test_distances(pool: WorkerPool, world_size: int) -> None:
    pool.run(distances, world_size=world_size)


class Weighted(DataFidelity):
    """A distance with a weight that is trained."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor(0.5, dtype=torch.float64))

    def fn(self, x: Any, y: Any, physics: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.weight.square() * (physics.A(x) - y + self.shift).flatten(1).square().sum(1)

    def grad(self, x: Any, y: Any, physics: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        residual = 2 * self.weight.square() * (physics.A(x) - y + self.shift)
        return physics.A_vjp(x, residual)


def trained_weights(ctx: DistributedContext) -> None:
    """A term's own weights have the undistributed gradient on every rank, and rank 0's values."""
    physics = StackedLinearPhysics(linear_operators(3))
    ours = distribute(linear_operators(3), ctx)
    y = random_like(physics.A(image(0)))
    single = Weighted(2.0)
    start = Weighted(2.0 + ctx.rank)
    start.shift += ctx.rank
    fidelity = distribute(start, ctx)
    assert list(fidelity.state_dict()) == list(single.state_dict())
    assert [p is q for p, q in zip(fidelity.parameters(), start.parameters())] == [True]
    several = [Weighted(1.0), Weighted(2.0), Weighted(3.0)]
    listed = [Weighted(1.0 + ctx.rank), Weighted(2.0), Weighted(3.0 - ctx.rank)]
    cases = [
        (fidelity, StackedPhysicsDataFidelity([single] * 3), [start], [single]),
        (distribute(listed, ctx), StackedPhysicsDataFidelity(several), listed, several),
    ]
    for mine, reference, own_terms, their_terms in cases:
        for name in ("fn", "grad"):
            compare_with_reference(
                as_functions(mine, name, ours, y),
                as_functions(reference, name, physics, y),
                (image(0), *flat(y)),
                params=[term.weight for term in own_terms],
                reference_params=[term.weight for term in their_terms],
                rtol=1e-11,
            )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_weights_of_a_fidelity(pool: WorkerPool, world_size: int) -> None:
    pool.run(trained_weights, world_size=world_size)


def operator_weights(ctx: DistributedContext) -> None:
    """A weight of an operator has the undistributed gradient on every rank, not its owner only."""
    operators = linear_operators(3)
    again = linear_operators(3)
    for op in (operators[0], again[0]):
        op.matrix.requires_grad_()
    ours, physics = distribute(operators, ctx), StackedLinearPhysics(again)
    y = random_like(physics.A(image(0)).detach())
    for name in ("fn", "grad"):
        compare_with_reference(
            as_functions(distribute(L2(), ctx), name, ours, y),
            as_functions(StackedPhysicsDataFidelity([L2()] * 3), name, physics, y),
            (image(0), *flat(y)),
            params=[operators[0].matrix],
            reference_params=[again[0].matrix],
            rtol=1e-11,
        )
        # Of the weight alone: no image or measurement asks for a gradient.
        mine = getattr(distribute(L2(), ctx), name)(image(0), y, ours)
        theirs = getattr(StackedPhysicsDataFidelity([L2()] * 3), name)(image(0), y, physics)
        (found,) = torch.autograd.grad(mine.square().sum(), operators[0].matrix)
        (expected,) = torch.autograd.grad(theirs.square().sum(), again[0].matrix)
        assert_close(found, expected, 1e-11, name)


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_weights_of_an_operator(pool: WorkerPool, world_size: int) -> None:
    pool.run(operator_weights, world_size=world_size)


def image_is_left_alone(ctx: DistributedContext) -> None:
    """Identity operators hand the very image to terms that mark it as in need of a gradient."""
    identity = LinearPhysics(A_adjoint=lambda y, **_: y)
    ours = distribute([identity] * 3, ctx)
    x = positive_image(0)
    y = [positive_image(n) for n in range(3)]
    fidelity = distribute(LogPoissonLikelihood(), ctx)
    first = fidelity.grad(x, y, ours)
    assert not x.requires_grad
    assert not first.requires_grad
    assert_close(fidelity.grad(x, y, ours), first, 0.0)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_image_is_left_alone(pool: WorkerPool, world_size: int) -> None:
    pool.run(image_is_left_alone, world_size=world_size)


def bits(ctx: DistributedContext) -> list[torch.Tensor]:
    ours = distribute(linear_operators(4), ctx)
    y = ours.A(image(1))
    fidelity = distribute(L2(), ctx)
    return [fidelity.fn(image(0), y, ours), fidelity.grad(image(0), y, ours)]


@pytest.mark.parametrize("world_size", (2, 3))
def test_every_rank_gets_the_same_bits(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(bits, world_size=world_size))


# -- what is refused, on every rank ----------------------------------------------------------------


def use_badly(ctx: DistributedContext, case: str) -> None:
    ours = distribute(linear_operators(3), ctx)
    x, y = image(0), ours.A(image(1))
    fidelity = distribute(L2(), ctx)
    data: dict[str, Any] = {"type_object": "data_fidelity"}
    cases = {
        "an undistributed stack": lambda: fidelity.grad(
            x, y, StackedLinearPhysics(linear_operators(3))
        ),
        "too few measurements": lambda: fidelity.grad(x, list(y.x)[:2], ours),
        "a tensor": lambda: fidelity.fn(x, x, ours),
        "an image elsewhere": lambda: fidelity.fn(x.to("meta"), y, ours),
        "measurements elsewhere": lambda: fidelity.fn(x, y.to("meta"), ours),
        "images that differ": lambda: fidelity.grad(image(0, batch=3 + ctx.rank), y, ours),
        "too few terms": lambda: distribute([L2(), L2()], ctx).grad(x, y, ours),
        "count of a list": lambda: distribute([L2(), L2()], ctx, num_operators=3),
        "a factory without count": lambda: distribute(lambda *_: L2(), ctx, **data),
        "kind of an entry": lambda: distribute([L2(), torch.nn.Identity()], ctx),
        "kind of a factory": lambda: distribute(
            lambda *_: torch.nn.Identity(), ctx, num_operators=3, **data
        ).fn(x, y, ours),
        "reduction": lambda: distribute(L2(), ctx, reduction="none"),
        "option": lambda: distribute(L2(), ctx, sigma=2.0),
        "lists of unequal length": lambda: fidelity.grad_d(y, list(y.x)[:2]),
        "a point for many terms": lambda: distribute([L2()] * 3, ctx).grad_d(y[0], y[0]),
    }
    cases[case]()


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("an undistributed stack", TypeError, "needs a distributed stack, got a StackedLinear"),
        ("too few measurements", ValueError, "expected 3 measurements"),
        ("a tensor", TypeError, "a list of 3 tensors"),
        ("an image elsewhere", ValueError, "the image is on meta"),
        ("measurements elsewhere", ValueError, "measurement 0 is on meta"),
        ("images that differ", ValueError, "ranks disagree on the shape"),
        ("too few terms", ValueError, "2 fidelity terms for a stack of 3"),
        ("count of a list", ValueError, "num_operators=3, but 2 are given"),
        ("a factory without count", ValueError, "needs num_operators="),
        ("kind of an entry", TypeError, "fidelity 1 is a Identity"),
        ("kind of a factory", TypeError, "the factory made a Identity"),
        ("reduction", ValueError, "got 'none'"),
        ("option", TypeError, "no option sigma"),
        ("lists of unequal length", ValueError, "3 points and 2 measurements"),
        ("a point for many terms", TypeError, "a list of points"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, kind: Any, message: str) -> None:
    outcomes = pool.run(use_badly, case, world_size=2, expect_error=True, timeout=20)
    assert_every_rank_raised(outcomes, kind, message)
