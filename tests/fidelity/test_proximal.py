"""Proximal operators: closed for L2, against an independent solution for L1 and the indicator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.optim import DataFidelity
from deepinv.optim.data_fidelity import L1, L2, IndicatorL2, StackedPhysicsDataFidelity
from deepinv.physics import LinearPhysics, StackedLinearPhysics

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
    gradients,
)
from tests.physics.stacks import (
    Dense,
    Gradients,
    Spectrum,
    image,
    linear_operators,
    nonlinear_operators,
    quiet,
    random_like,
)

COUNT = 3
RADIUS = 0.8


def operators() -> list[LinearPhysics]:
    return [Dense(9 + 2 * number, seed=60 + number) for number in range(COUNT)]


def l2(ctx: DistributedContext) -> torch.Tensor:
    physics, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    x, y = image(0), random_like(physics.A(image(0)))
    ours.tol, ours.max_iter = 1e-10, 60
    matrix = torch.cat([op.matrix for op in operators()])
    right = torch.cat(list(y.x), dim=1)
    system = 0.7 / 0.3**2 * matrix.mT @ matrix + torch.eye(matrix.shape[1], dtype=x.dtype)
    exact = torch.linalg.solve(
        system, (0.7 / 0.3**2 * right @ matrix + x.flatten(1)).mT
    ).mT.view_as(x)
    fidelity = distribute(L2(sigma=0.3), ctx)
    found = fidelity.prox(x, y, ours, gamma=0.7)
    # DeepInverse's conjugate gradients add 1e-8 to what they divide by: they end here.
    assert_close(found, exact, 1e-4)
    assert_close(fidelity.prox(x, ours.own(y), ours, gamma=0.7), found, 1e-6, "owned")
    conjugate = fidelity.prox_conjugate(x, y, ours, gamma=1 / 0.7)
    assert_close(conjugate, x - fidelity.prox(0.7 * x, y, ours, gamma=0.7) / 0.7, 1e-6)
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_l2(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(l2, world_size=world_size))


def l2_with_a_mean(ctx: DistributedContext) -> None:
    """The prox is of the very function that fn and grad are of, whoever asked for the mean."""
    for stacks_own in ("sum", "mean"):
        with quiet():
            physics = StackedLinearPhysics(operators(), reduction=stacks_own)
            ours = distribute(physics, ctx)
        physics.tol = ours.tol = 1e-10
        physics.max_iter = ours.max_iter = 60
        x, y = image(0), random_like(physics.A(image(0)))
        for asked in (None, "sum", "mean"):
            fidelity = distribute(L2(sigma=0.5), ctx, reduction=asked)
            t = fidelity.prox(x, y, ours, gamma=0.7)
            optimality = 0.7 * fidelity.grad(t, y, ours) + t - x
            assert optimality.norm() < 1e-4 * x.norm(), (stacks_own, asked)
        with quiet():
            theirs = L2(sigma=0.5).prox(x, y, physics, gamma=0.7)
        mine = distribute(L2(sigma=0.5), ctx).prox(x, y, ours, gamma=0.7)
        assert_close(mine, theirs, 1e-9, f"stack with a {stacks_own}")


@pytest.mark.parametrize("world_size", (1, 2))
def test_l2_with_a_mean(pool: WorkerPool, world_size: int) -> None:
    pool.run(l2_with_a_mean, world_size=world_size)


# -- L1 and the indicator of a ball: a long dual iteration on one matrix, written out here ---------


def dual_solution(
    x: torch.Tensor, y: list[torch.Tensor], conjugate_prox: Any, iterations: int = 40000
) -> torch.Tensor:
    r"""argmin_t ½‖t − x‖² + Σ d_i(A_i t, y_i), by accelerated ascent on the dual, undistributed.

    With t = x − Aᵀu, u ← prox_{s d*}(v + s A (x − Aᵀv)): FISTA (Beck and Teboulle, 2009) on the
    dual, unlike the plain iteration of the code under test.
    """
    matrix = torch.cat([op.matrix for op in operators()])
    rows = [op.matrix.shape[0] for op in operators()]
    target = x.flatten(1)
    step = 1 / torch.linalg.matrix_norm(matrix, 2) ** 2
    u = v = torch.zeros(x.shape[0], matrix.shape[0], dtype=x.dtype)
    pace = 1.0
    for _ in range(iterations):
        raw = v + step * (target - v @ matrix) @ matrix.mT
        new = torch.cat(
            [
                conjugate_prox(part, measurement, step)
                for part, measurement in zip(raw.split(rows, dim=1), y)
            ],
            dim=1,
        )
        faster = (1 + (1 + 4 * pace**2) ** 0.5) / 2
        v, moved = new + (pace - 1) / faster * (new - u), (new - u).norm()
        u, pace = new, faster
        if moved < 1e-14 * (1 + u.norm()):
            break
    return (target - u @ matrix).view_as(x)


def conjugate_of_l1(gamma: float) -> Any:
    """d = γ‖· − y‖₁: prox_{s d*}(u) is u − s y held within ±γ."""
    return lambda u, y, step: (u - step * y).clamp(-gamma, gamma)


def conjugate_of_ball(radius: float) -> Any:
    """d = the indicator of ‖· − y‖ ≤ ρ: prox_{s d*}(u) is u − s y shortened by s ρ."""

    def prox(u: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        w = u - step * y
        length = w.norm(dim=1, keepdim=True)
        return w * (1 - step * radius / length.clamp(min=1e-300)).clamp(min=0)

    return prox


def by_the_dual(ctx: DistributedContext, kind: str, solution: torch.Tensor) -> torch.Tensor:
    ours = distribute(operators(), ctx)
    x = image(0)
    y = random_like(ours.A(x))
    options: dict[str, Any] = {"max_iter": 1500, "crit_conv": 1e-8}
    if kind == "L1":
        fidelity, options["gamma"] = distribute(L1(), ctx), 0.4
    else:
        fidelity = distribute(IndicatorL2(radius=RADIUS), ctx)
    found = fidelity.prox(x, y, ours, **options)
    assert_close(found, solution, 1e-5, kind)
    few = {**options, "max_iter": 20, "stepsize": 0.1}
    start = fidelity.prox(x, y, ours, **few)
    assert (start - found).norm() > 1e-3 * found.norm(), "max_iter is not heeded"
    assert_close(fidelity.prox(x, ours.own(y), ours, **few), start, 1e-12, f"{kind}, owned")
    if kind != "L1":
        wide = distribute(IndicatorL2(radius=100.0), ctx)
        assert_close(wide.prox(x, y, ours, radius=RADIUS, **few), start, 1e-12, "radius=")
        for i, op in ours.operators.local_items():
            assert ((op.A(found) - y[i]).norm(dim=1) < RADIUS * (1 + 1e-4)).all()
    return found


@pytest.mark.parametrize("kind", ["L1", "ball"])
def test_l1_and_indicator(pool: WorkerPool, kind: str) -> None:
    x = image(0)
    y = list(random_like(StackedLinearPhysics(operators()).A(x)).x)
    conjugate = conjugate_of_l1(0.4) if kind == "L1" else conjugate_of_ball(RADIUS)
    solution = dual_solution(x, y, conjugate)
    for world_size in WORLD_SIZES:
        assert_same_on_every_rank(pool.run(by_the_dual, kind, solution, world_size=world_size))


def prox_of_l1_on_masks(ctx: DistributedContext) -> torch.Tensor:
    """Case 26 of the peer, where the answer is known: shrinking towards the measured pixels."""
    from tests.physics.stacks import masks

    ours = distribute(masks(4), ctx)
    x, z = image(0), image(1)
    found = distribute(L1(), ctx).prox(x, ours.A(z), ours, gamma=0.3, crit_conv=1e-12, max_iter=500)
    expected = z + (x - z).sign() * ((x - z).abs() - 0.3).clamp(min=0)
    assert_close(found, expected, 1e-9)
    batch = torch.tensor([0.3, 1.1], dtype=torch.float64)
    found = distribute(L1(), ctx).prox(
        x, ours.A(z), ours, gamma=batch, crit_conv=1e-12, max_iter=500
    )
    weight = batch.view(2, 1, 1, 1)
    assert_close(found, z + (x - z).sign() * ((x - z).abs() - weight).clamp(min=0), 1e-9)
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_l1_on_masks(pool: WorkerPool, world_size: int) -> None:
    pool.run(prox_of_l1_on_masks, world_size=world_size, timeout=30)


def l1_of_other_measurements(ctx: DistributedContext) -> None:
    """Complex and nested measurements: the subgradient condition holds at the answer."""
    made = [Spectrum(seed=1), Gradients(), Dense(9, seed=3)]
    ours = distribute(made, ctx)
    x = image(0)
    y = random_like(ours.A(x))
    fidelity = distribute(L1(), ctx)
    t = fidelity.prox(x, y, ours, gamma=0.05, crit_conv=1e-9, max_iter=600)

    def objective(t: torch.Tensor) -> torch.Tensor:
        values = [op.A(t) for op in made]
        terms = [(values[0] - y[0]).abs().sum(), (values[2] - y[2]).abs().sum()]
        terms += [(a - b).abs().sum() for a, b in zip(values[1].x, y[1].x)]
        return 0.05 * sum(terms) + 0.5 * (t - x).square().sum()

    best = objective(t)
    for seed in range(5):
        assert objective(t + 1e-3 * image(50 + seed)) > best
    assert best < objective(x)


@pytest.mark.parametrize("world_size", (1, 3))
def test_l1_of_complex_and_nested_measurements(pool: WorkerPool, world_size: int) -> None:
    pool.run(l1_of_other_measurements, world_size=world_size)


# -- every other fidelity goes down the gradient, as in DeepInverse --------------------------------


def fourth_power(u: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (u - y).pow(4).flatten(1).sum(1)


def by_gradient_descent(ctx: DistributedContext) -> None:
    from deepinv.physics import StackedPhysics

    linear = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    bent = StackedPhysics(nonlinear_operators(COUNT)), distribute(nonlinear_operators(COUNT), ctx)
    x = image(0)
    options = {"gamma": 0.05, "stepsize_inter": 0.1, "max_iter_inter": 7, "tol_inter": 1e-12}
    cases = {
        "a user's own": (DataFidelity(d=fourth_power), [DataFidelity(d=fourth_power)] * 3, linear),
        "a list": ([L2(0.5), L2(1.0), L1()], [L2(0.5), L2(1.0), L1()], linear),
        "L2, not linear": (L2(0.8), [L2(0.8)] * 3, bent),
        "L1, not linear": (L1(), [L1()] * 3, bent),
    }
    for name, (source, terms, (physics, ours)) in cases.items():
        y = random_like(physics.A(x))
        mine = distribute(source, ctx).prox(x, y, ours, **options)
        theirs = StackedPhysicsDataFidelity(terms).prox(x, y, physics, **options)
        assert_close(mine.detach(), theirs.detach(), 1e-10, name)
        assert not x.requires_grad


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gradient_descent(pool: WorkerPool, world_size: int) -> None:
    pool.run(by_gradient_descent, world_size=world_size)


def differentiated(ctx: DistributedContext) -> None:
    """Gradients through a few iterations of each kind of prox."""
    ours = distribute(operators(), ctx)
    physics = StackedLinearPhysics(operators())
    y = random_like(physics.A(image(0)))
    ours.max_iter = physics.max_iter = 4
    with quiet():
        theirs = gradients(lambda x: L2().prox(x, y, physics, gamma=0.5), image(0))
    mine = gradients(lambda x: distribute(L2(), ctx).prox(x, y, ours, gamma=0.5), image(0))
    assert_close(mine, theirs, 1e-10)
    for fidelity in (L1(), IndicatorL2(radius=RADIUS)):
        options = {"stepsize": 0.1, "max_iter": 3}
        block = distribute(fidelity, ctx)
        mine = gradients(lambda x, b=block, o=options: b.prox(x, y, ours, **o), image(0))
        matrix = torch.cat([op.matrix for op in operators()])
        conjugate = conjugate_of_l1(1.0) if isinstance(fidelity, L1) else conjugate_of_ball(RADIUS)
        expected = gradients(
            lambda x, m=matrix, c=conjugate: plain_dual(x, list(y.x), m, c, 0.1, 3), image(0)
        )
        assert_close(mine, expected, 1e-10, type(fidelity).__name__)


def plain_dual(
    x: torch.Tensor, y: list[torch.Tensor], matrix: torch.Tensor, conjugate_prox: Any,
    step: float, iterations: int,
) -> torch.Tensor:  # fmt: skip
    rows = [measurement.shape[1] for measurement in y]
    u = torch.zeros(x.shape[0], matrix.shape[0], dtype=x.dtype)
    t = x.flatten(1)
    for _ in range(iterations):
        raw = u + step * t @ matrix.mT
        parts = [
            conjugate_prox(p, m, torch.tensor(step, dtype=x.dtype))
            for p, m in zip(raw.split(rows, 1), y)
        ]
        u = torch.cat(parts, dim=1)
        t = x.flatten(1) - u @ matrix
    return t.view_as(x)


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_gradients_through_a_prox(pool: WorkerPool, world_size: int) -> None:
    pool.run(differentiated, world_size=world_size)


def ask_for_what_is_not_there(ctx: DistributedContext, case: str) -> None:
    ours = distribute(operators(), ctx)
    x, y = image(0), ours.A(image(0))
    with quiet():
        mean = distribute(StackedLinearPhysics(linear_operators(3), reduction="mean"), ctx)
    cases = {
        "option": lambda: distribute(L1(), ctx).prox(x, y, ours, max_iter_inter=3),
        "mean": lambda: distribute(L1(), ctx).prox(x, mean.A(x), mean),
        "stack": lambda: distribute(L1(), ctx).prox(x, y, StackedLinearPhysics(operators())),
    }
    cases[case]()


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("option", TypeError, "no option.*max_iter_inter"),
        ("mean", ValueError, "reduction='sum'"),
        ("stack", TypeError, "needs a distributed stack"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, kind: Any, message: str) -> None:
    outcomes = pool.run(ask_for_what_is_not_there, case, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, kind, message)
