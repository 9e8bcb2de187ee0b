"""Norms, pseudo-inverses and proximal operators of a stack as a whole, not of its operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import StackedLinearPhysics

from shardinv import DistributedStackedLinearPhysics, OwnedMeasurements, distribute
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
    IMAGE,
    Dense,
    Spectrum,
    flat,
    generator,
    image,
    linear_operators,
    masks,
    quiet,
    random_like,
    unflat,
)

SOLVERS = ("CG", "BiCGStab", "minres", "lsqr")


def well_posed() -> list[Any]:
    """A stack with more measurements than pixels, of a condition number in the tens."""
    return [Dense(45, seed=31), Spectrum(seed=32), Dense(40, seed=33)]


def both(ctx: DistributedContext, operators: Any, reduction: str = "sum") -> tuple[Any, Any]:
    with quiet():
        reference = StackedLinearPhysics(operators(), reduction=reduction)
        return reference, distribute(StackedLinearPhysics(operators(), reduction=reduction), ctx)


def matrix(stack: Any) -> torch.Tensor:
    """The stack's matrix, of real rows: complex values count as two."""
    size = 1
    for n in IMAGE:
        size *= n
    basis = torch.eye(size, dtype=torch.float64).view(size, *IMAGE)
    return real_rows(stack.A(basis)).T


def real_rows(y: Any) -> torch.Tensor:
    tensors = [torch.view_as_real(t) if t.is_complex() else t for t in flat(y)]
    return torch.cat([t.flatten(1) for t in tensors], dim=1)


# -- the norm --------------------------------------------------------------------------------------


def norms(ctx: DistributedContext) -> list[torch.Tensor]:
    reference, ours = both(ctx, lambda: linear_operators(6))
    exact = torch.linalg.matrix_norm(matrix(reference), 2) ** 2
    sqnorm = ours.compute_sqnorm(image(0), tol=1e-6, max_iter=150, verbose=False)
    assert_close(sqnorm, exact, 1e-3, "squared norm")
    found = [sqnorm]
    for name, options in {
        "compute_sqnorm": {},
        "compute_norm": {"squared": False},
        # Squared as well, in DeepInverse, which warns of it.
        "compute_norm ": {},
    }.items():
        with quiet():
            torch.manual_seed(3)
            theirs = getattr(reference, name.strip())(image(0), verbose=False, **options)
            torch.manual_seed(3)
            mine = getattr(ours, name.strip())(image(0), verbose=False, **options)
        assert_close(mine, theirs, 1e-12, f"{name} {options}")
        found.append(mine)
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_norm_of_the_stack(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(norms, world_size=world_size))


def same_iteration(ctx: DistributedContext) -> torch.Tensor:
    """Ranks whose generators differ start the power method from rank 0's image."""
    reference, ours = both(ctx, lambda: linear_operators(4))
    torch.manual_seed(7 + 100 * ctx.rank)
    mine = ours.compute_sqnorm(image(0), max_iter=5, verbose=False)
    after = torch.rand(3)
    torch.manual_seed(7)
    theirs = reference.compute_sqnorm(image(0), max_iter=5, verbose=False)
    assert_close(mine, theirs, 1e-12)
    if ctx.is_main:  # whose generator is where it would be without other ranks
        assert_close(after, torch.rand(3), 0.0)
    return after


@pytest.mark.filterwarnings("ignore:Power iteration")
@pytest.mark.parametrize("world_size", (1, 3))
def test_norm_starts_where_the_undistributed_one_does(pool: WorkerPool, world_size: int) -> None:
    draws = pool.run(same_iteration, world_size=world_size)
    assert len({tuple(draw.tolist()) for draw in draws}) == world_size


def norm_of_masks(ctx: DistributedContext) -> None:
    """Case 8 of the peer: the norm is 1, the sum of the norms 4 is a bound, asked for by name."""
    ours = distribute(masks(4), ctx)
    x = image(0)
    assert_close(ours.compute_sqnorm(x, verbose=False), torch.tensor(1.0).double(), 1e-12)
    assert_close(
        ours.compute_norm(x, squared=False, verbose=False), torch.tensor(1.0).double(), 1e-12
    )
    bound = ours.compute_sqnorm(x, verbose=False, local_only=True)
    assert_close(bound, torch.tensor(4.0).double(), 1e-12)
    part = ours.compute_sqnorm(x, verbose=False, local_only=True, gather=False)
    assert_close(part, torch.tensor(float(len(ours.ownership.mine))).double(), 1e-12)
    with quiet():
        mean = distribute(StackedLinearPhysics(masks(4), reduction="mean"), ctx)
        assert_close(mean.compute_sqnorm(x, verbose=False), torch.tensor(0.25).double(), 1e-12)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_norm_of_disjoint_masks(pool: WorkerPool, world_size: int) -> None:
    pool.run(norm_of_masks, world_size=world_size)


# -- the pseudo-inverse ----------------------------------------------------------------------------


def solutions(ctx: DistributedContext) -> list[torch.Tensor]:
    """The least-squares solution of inconsistent measurements, by every solver, from both lists."""
    reference, ours = both(ctx, well_posed)
    y = random_like(reference.A(image(0)))
    exact = torch.linalg.lstsq(matrix(reference), real_rows(y).T).solution.T.view(2, *IMAGE)
    owned = ours.own(y)
    found = []
    for solver in SOLVERS:
        options = {"solver": solver, "max_iter": 80, "tol": 1e-9}
        lists = {"full": y, "owned": owned}
        if solver == "CG":
            lists["plain"] = list(y.x)
        for name, given in lists.items():
            mine = ours.A_dagger(given, **options)
            assert_close(mine, exact, 2e-5, f"{solver} of a {name} list against the solution")
            found.append(mine)
        if solver != "lsqr":  # which is wrong for lists in DeepInverse
            with quiet():
                theirs = reference.A_dagger(y, **options)
            assert_close(mine, theirs, 2e-5, f"{solver} against the undistributed one")
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_pseudo_inverse(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(solutions, world_size=world_size))


def iterations_are_counted(ctx: DistributedContext) -> None:
    """The same iterates as the undistributed solver's, after as many iterations as asked for."""
    reference, ours = both(ctx, well_posed)
    y = reference.A(image(0))
    last = None
    for solver in ("CG", "BiCGStab", "minres"):
        for max_iter in (1, 2, 5):
            with quiet():
                theirs = reference.A_dagger(y, solver=solver, max_iter=max_iter, tol=1e-14)
            mine = ours.A_dagger(y, solver=solver, max_iter=max_iter, tol=1e-14)
            assert_close(mine, theirs, 1e-9, f"{max_iter} iterations of {solver}")
            assert last is None or not torch.allclose(mine, last)
            last = mine
    assert (ours.solver, ours.max_iter, ours.tol) == ("minres", 5, 1e-14)
    # Options are remembered, as in DeepInverse, and a stack brings its own along.
    reference.max_iter, reference.tol = 3, 1e-13
    with quiet():
        again = distribute(reference, ctx)
        assert_close(again.A_dagger(y), reference.A_dagger(y), 1e-9, "the stack's own options")
    assert again.max_iter == 3


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_iterations_are_counted(pool: WorkerPool, world_size: int) -> None:
    pool.run(iterations_are_counted, world_size=world_size)


def inverse_of_masks(ctx: DistributedContext) -> None:
    """Case 9 of the peer: the inverse is exact, where the mean of local ones is 0.75 off."""
    ours = distribute(masks(4), ctx)
    x = image(0)
    y = ours.A(x)
    assert_close(ours.A_dagger(y), x, 1e-7)
    mean = ours.A_dagger(y, local_only=True)
    assert_close(mean, x / 4, 1e-12)
    assert abs((mean - x).norm() / x.norm() - 0.75) < 1e-12
    part = ours.A_dagger(y, local_only=True, gather=False)
    assert_close(ctx.all_reduce(part.clone()), x / 4, 1e-12)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_inverse_of_disjoint_masks(pool: WorkerPool, world_size: int) -> None:
    pool.run(inverse_of_masks, world_size=world_size)


# -- the proximal operator -------------------------------------------------------------------------


def proximal(ctx: DistributedContext) -> None:
    reference, ours = both(ctx, well_posed)
    z, y = image(3), random_like(reference.A(image(0)))
    A, right = matrix(reference), real_rows(y)
    tight = {"max_iter": 80, "tol": 1e-9}
    for gamma in (0.7, torch.tensor([0.3, 2.0], dtype=torch.float64)):
        weight = torch.as_tensor(gamma, dtype=torch.float64).expand(2)
        exact = torch.stack(
            [
                torch.linalg.solve(
                    w * A.T @ A + torch.eye(A.shape[1], dtype=A.dtype),
                    w * A.T @ right[b] + z[b].flatten(),
                ).view(IMAGE)
                for b, w in enumerate(weight)
            ]
        )
        for solver in SOLVERS:
            given = ours.own(y) if isinstance(gamma, float) else y
            mine = ours.prox_l2(z, given, gamma, solver=solver, **tight)
            assert_close(mine, exact, 1e-5, f"{solver}, gamma {gamma}")
    for start in (None, 0, 0.5):
        with quiet():
            theirs = reference.prox_l2(start, y, 0.7, max_iter=4)
        assert_close(ours.prox_l2(start, y, 0.7, max_iter=4), theirs, 1e-9, f"from {start}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_proximal_operator(pool: WorkerPool, world_size: int) -> None:
    pool.run(proximal, world_size=world_size)


def inverse_gradients(ctx: DistributedContext) -> None:
    reference, ours = both(ctx, well_posed)
    y, z = random_like(reference.A(image(0))), image(1)
    leaves = (z, *flat(y))

    def run(stack: Any, name: str, solver: str) -> list[torch.Tensor]:
        def call(z: torch.Tensor, *v: torch.Tensor) -> torch.Tensor:
            measured = unflat(list(v), y)
            options = {"solver": solver, "max_iter": 6, "tol": 1e-12}
            if name == "A_dagger":
                return stack.A_dagger(measured, **options) + 0 * z
            return stack.prox_l2(z, measured, 0.8, **options)

        return gradients(call, leaves)

    for name in ("A_dagger", "prox_l2"):
        for solver in ("CG", "minres"):
            with quiet():
                theirs = run(reference, name, solver)
            assert_close(run(ours, name, solver), theirs, 1e-9, f"{name} by {solver}")


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_gradients_through_a_solver(pool: WorkerPool, world_size: int) -> None:
    pool.run(inverse_gradients, world_size=world_size)


def mean_stack(ctx: DistributedContext) -> None:
    reference, ours = both(ctx, well_posed, reduction="mean")
    y, z = reference.A(image(0)), image(1)
    with quiet():
        assert_close(ours.A_dagger(y, max_iter=5), reference.A_dagger(y, max_iter=5), 1e-9)
        theirs = reference.prox_l2(z, y, 0.8, max_iter=5)
    assert_close(ours.prox_l2(z, y, 0.8, max_iter=5), theirs, 1e-9)


@pytest.mark.parametrize("world_size", (1, 3))
def test_stack_with_a_mean(pool: WorkerPool, world_size: int) -> None:
    pool.run(mean_stack, world_size=world_size)


def no_inverse_of_a_list(ctx: DistributedContext) -> None:
    _, ours = both(ctx, well_posed, reduction="none")
    assert isinstance(ours, DistributedStackedLinearPhysics)
    y = ours.A(image(0), gather=False)
    assert isinstance(y, OwnedMeasurements)
    ours.A_dagger(y)


@pytest.mark.parametrize("world_size", (1, 2))
def test_no_inverse_without_a_reduction(pool: WorkerPool, world_size: int) -> None:
    outcomes = pool.run(no_inverse_of_a_list, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, "reduction='sum'")


def no_such_option(ctx: DistributedContext) -> None:
    _, ours = both(ctx, well_posed)
    ours.A_dagger(ours.A(image(0)), max_iters=3)


@pytest.mark.parametrize("world_size", (1, 2))
def test_an_option_unknown_to_the_solver(pool: WorkerPool, world_size: int) -> None:
    outcomes = pool.run(no_such_option, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, TypeError, "max_iters")


def no_such_solver(ctx: DistributedContext) -> None:
    _, ours = both(ctx, well_posed)
    ours.A_dagger(ours.A(image(0)), solver="jacobi")


def test_an_unknown_solver(pool: WorkerPool) -> None:
    assert_every_rank_raised(pool.run(no_such_solver, expect_error=True), ValueError, "jacobi")


def messages(ctx: DistributedContext) -> list[tuple[int, int]]:
    """CG sends one image an iteration, and no measurement, whichever list it is given."""
    _, ours = both(ctx, well_posed)
    y = ours.A(image(0))
    counts = []
    for given in (y, ours.own(y)):
        calls = {}
        for max_iter in (3, 8):
            ours.A_dagger(given, max_iter=max_iter, tol=1e-15)
            ctx.ledger.reset()
            ours.A_dagger(given, max_iter=max_iter, tol=1e-15)
            calls[max_iter] = (ctx.ledger.calls, ctx.ledger.bytes_sent)
        counts.append(tuple(b - a for a, b in zip(calls[3], calls[8])))
    return counts


def test_a_solver_sends_images_only(pool: WorkerPool) -> None:
    one_image = image(0).numel() * 8  # 2 (R - 1) / R of its bytes
    for counts in pool.run(messages, world_size=2):
        assert counts == [(5, 5 * one_image)] * 2


def seeds_are_not_needed(ctx: DistributedContext) -> None:
    """The values of x0 don't matter to the norm, and neither does its batch."""
    _, ours = both(ctx, lambda: linear_operators(4))
    one = torch.randn(1, *IMAGE, generator=generator(ctx.rank), dtype=torch.float64)
    norm = ours.compute_sqnorm(one, tol=1e-7, max_iter=400, verbose=False)
    many = ours.compute_sqnorm(image(0), tol=1e-7, max_iter=400, verbose=False)
    assert_close(norm, many, 1e-4)


def test_norm_ignores_the_values_of_its_image(pool: WorkerPool) -> None:
    pool.run(seeds_are_not_needed, world_size=2)
