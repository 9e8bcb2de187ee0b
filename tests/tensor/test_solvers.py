"""Solvers of DeepInverse, as they are, on an image of which every rank holds a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.optim import ADMM, DPIR, DRS, FISTA, GD, HQS, MD, PDCP, PGD, PMD, BaseOptim
from deepinv.optim.data_fidelity import L2
from deepinv.optim.optimizers import AndersonAccelerationConfig, BacktrackingConfig, DEQConfig
from deepinv.optim.prior import RED, L1Prior, L12Prior, PnP, Prior, Tikhonov
from deepinv.physics import Blur, Inpainting, LinearPhysics

from shardinv import DistributedContext, distribute
from shardinv.tensor import LayoutError, ShardedTensor, sharded_factories
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.tensor.algorithms import (
    LAYOUTS,
    Case,
    Convolutional,
    Differences,
    Mixing,
    Pixelwise,
    compare,
    images,
    some_of,
)

# -- linear solvers --------------------------------------------------------------------------------

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], LinearPhysics]] = {
    "mixing": lambda x, mask: Mixing(mask, max_iter=3),
    "differences": lambda x, mask: Differences(x, max_iter=3),
    "inpainting": lambda x, mask: Inpainting(tuple(x.shape[1:]), mask=mask),
}
LINEAR_SOLVERS = ("CG", "lsqr", "BiCGStab", "minres")


def steps(x: torch.Tensor) -> int:
    """Fewer than it takes to converge: after that, rounding errors are divided by each other."""
    return 4 if x.shape[2] > 4 else 1


def pseudo_inverse(operator: str, solver: str) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        physics = OPERATORS[operator](x, mask)
        with sharded_factories():
            return physics.A_dagger(physics.A(x), solver=solver, max_iter=steps(x), tol=1e-30)

    return run


def proximal(operator: str, solver: str, gamma: Any) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        physics = OPERATORS[operator](x, mask)
        with sharded_factories():
            return physics.prox_l2(
                0.5 * x, physics.A(x), gamma, solver=solver, max_iter=steps(x), tol=1e-30
            )

    return run


def norms(operator: str) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        physics = OPERATORS[operator](x, mask)
        return [
            physics.compute_sqnorm(x, max_iter=4, verbose=False),
            physics.compute_norm(x, max_iter=4, verbose=False, squared=False),
            physics.condition_number(x, max_iter=4, verbose=False),
        ]

    return run


def linear_cases() -> dict[str, Case]:
    cases = {}
    for operator in OPERATORS:
        for solver in LINEAR_SOLVERS:
            cases[f"A_dagger, {operator}, {solver}"] = pseudo_inverse(operator, solver)
            cases[f"prox, {operator}, {solver}"] = proximal(operator, solver, 0.7)
            if operator == "differences":
                each = torch.tensor([0.3, 0.7])
                cases[f"prox of each, {operator}, {solver}"] = proximal(operator, solver, each)
    return cases | {f"norms, {op}": norms(op) for op in ("mixing", "differences")}


def run_linear(ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]) -> None:
    compare(ctx, some_of(linear_cases(), mesh, shape), mesh, shape)


@pytest.mark.parametrize(("world_size", "mesh", "shape"), LAYOUTS)
def test_linear_solvers(pool: WorkerPool, world_size: int, mesh: Any, shape: Any) -> None:
    pool.run(run_linear, mesh, shape, world_size=world_size)


def minres_alone(ctx: DistributedContext) -> None:
    x, mask = images((1, 3, 6, 5))
    physics = Mixing(ctx.shard(mask))
    physics.A_dagger(physics.A(ctx.shard(x)), solver="minres")


def test_what_a_library_makes_replicated_is_refused(pool: WorkerPool) -> None:
    outcomes = pool.run(minres_alone, expect_error=True)
    assert_every_rank_raised(outcomes, LayoutError, "replicated tensor .* varies in space")


# -- optimisation ----------------------------------------------------------------------------------

PRIORS: dict[str, Callable[[], Prior]] = {
    "plug-and-play": lambda: PnP(Pixelwise()),
    "by denoising": lambda: RED(Pixelwise()),
    "Tikhonov": Tikhonov,
    "L1": L1Prior,
    "L12": lambda: L12Prior(l2_axis=1),
}
SOLVERS: dict[str, tuple[Callable[..., BaseOptim], dict[str, Any], int]] = {
    # With the number of variables that an initial value consists of.
    "GD": (GD, {}, 1),
    "PGD": (PGD, {}, 1),
    "FISTA": (FISTA, {}, 2),
    "HQS": (HQS, {}, 1),
    "ADMM": (ADMM, {"beta": 0.8}, 2),
    "DRS": (DRS, {"beta": 0.8}, 2),
    "PDCP": (PDCP, {"stepsize_dual": 0.5}, 3),
}


def solve(
    solver: str,
    prior: str = "Tikhonov",
    operator: str = "mixing",
    start: Callable[[torch.Tensor], Any] | None = None,
    metrics: bool = False,
    **options: Any,
) -> Case:
    make, needed, _ = SOLVERS[solver]
    given = {
        "stepsize": 0.4, "lambda_reg": 0.7, "g_param": 0.2, "max_iter": 3, "early_stop": False,
        **needed, **options,
    }  # fmt: skip

    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        physics = OPERATORS[operator](x, mask)
        y = physics.A(x)
        model = make(data_fidelity=L2(sigma=0.8), prior=PRIORS[prior](), **given)
        init = None if start is None else start(x)
        if "anderson_acceleration" in options and isinstance(x, ShardedTensor):
            # Of a world of one too; the plain reference runs as it is.
            model = distribute(model, DistributedContext())
        return model(y, physics, init=init, x_gt=x if metrics else None, compute_metrics=metrics)

    return run


def solver_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name, (_, _, variables) in SOLVERS.items():
        descent = name == "GD"
        for prior in ("by denoising", "Tikhonov") if descent else tuple(PRIORS):
            if descent or prior != "by denoising":
                cases[f"{name}, {prior}"] = solve(name, prior)
        cases[f"{name}, metrics"] = solve(name, metrics=True)
        for criterion in ("residual", "cost"):
            cases[f"{name}, {criterion}"] = solve(
                name, metrics=True, max_iter=12, early_stop=True,
                crit_conv=criterion, thres_conv=2e-2,
            )  # fmt: skip
        cases[f"{name}, prior first"] = solve(name, "Tikhonov", g_first=True)
        if name != "PDCP":  # whose dual variable starts in the image's shape in DeepInverse
            cases[f"{name}, differences"] = solve(name, operator="differences")
        if name not in ("ADMM", "DRS"):  # which take no such initial values in DeepInverse
            cases[f"{name}, from a start"] = solve(
                name, start=lambda x, n=variables: (0.3 * x,) * n if n > 1 else 0.3 * x
            )
        cases[f"{name}, its own start"] = solve(
            name,
            custom_init=lambda y, physics, n=variables: {"est": (physics.A_adjoint(y),) * n},
        )
        if name in ("GD", "PGD", "FISTA"):
            shortening = BacktrackingConfig(gamma=0.1, eta=0.5)
            cases[f"{name}, backtracking"] = solve(
                name, metrics=True, stepsize=5.0, backtracking=shortening
            )
    return cases


def others() -> dict[str, Case]:
    def mirror(make: Any) -> Case:
        def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
            physics = Mixing(mask)
            return make(data_fidelity=L2(), prior=Tikhonov(), stepsize=0.3, max_iter=4)(
                physics.A(x), physics
            )

        return run

    def dpir(x: torch.Tensor, mask: torch.Tensor) -> Any:
        physics = Mixing(mask, max_iter=3)
        return DPIR(sigma=0.05, denoiser=Pixelwise())(physics.A(x), physics)

    return {"mirror descent": mirror(MD), "proximal mirror": mirror(PMD), "DPIR": dpir}


def run_solvers(ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]) -> None:
    compare(ctx, some_of(solver_cases() | others(), mesh, shape), mesh, shape)


@pytest.mark.parametrize(("world_size", "mesh", "shape"), LAYOUTS)
def test_solvers(pool: WorkerPool, world_size: int, mesh: Any, shape: Any) -> None:
    pool.run(run_solvers, mesh, shape, world_size=world_size)


def stop_somewhere(ctx: DistributedContext) -> dict[str, int]:
    """How many iterations the early stopping of the cases above takes."""
    x, mask = images((2, 3, 13, 9))
    counts = {}
    for criterion in ("residual", "cost"):
        case = solve(
            "PGD", metrics=True, max_iter=25, early_stop=True, crit_conv=criterion, thres_conv=2e-2
        )
        _, metrics = case(ctx.shard(x), ctx.shard(mask))
        counts[criterion] = len(metrics["psnr"][0])
    return counts


def test_early_stopping_stops_early(pool: WorkerPool) -> None:
    counts = pool.run(stop_somewhere, world_size=2)
    assert counts[0] == counts[1]
    assert all(3 < count < 25 for count in counts[0].values()), counts


# -- Anderson acceleration -------------------------------------------------------------------------


def anderson_cases() -> dict[str, Case]:
    full = AndersonAccelerationConfig(full_backprop=True, history_size=3)
    cases = {}
    for name in SOLVERS:
        cases[name] = solve(name, max_iter=4, anderson_acceleration=True)
        cases[f"{name}, short history"] = solve(name, max_iter=6, anderson_acceleration=full)
    return cases


def run_anderson(ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]) -> None:
    # The small system it solves is nearly singular, and doubles what rounding does to it.
    cases = some_of(anderson_cases(), mesh, shape)
    compare(ctx, cases, mesh, shape, rtol=1e-8, numbers=1024)


@pytest.mark.parametrize(("world_size", "mesh", "shape"), LAYOUTS)
def test_anderson_acceleration(pool: WorkerPool, world_size: int, mesh: Any, shape: Any) -> None:
    pool.run(run_anderson, mesh, shape, world_size=world_size)


def anderson_alone(ctx: DistributedContext) -> None:
    x, mask = images((1, 3, 6, 5))
    physics = Mixing(ctx.shard(mask))
    PGD(data_fidelity=L2(), prior=Tikhonov(), max_iter=2, anderson_acceleration=True)(
        physics.A(ctx.shard(x)), physics
    )


def test_anderson_acceleration_says_what_it_needs(pool: WorkerPool) -> None:
    outcomes = pool.run(anderson_alone, expect_error=True)
    assert_every_rank_raised(outcomes, LayoutError, r"Anderson acceleration.*distribute\(solver")


def in_place(ctx: DistributedContext) -> None:
    model = PGD(data_fidelity=L2(), prior=Tikhonov(), max_iter=2)
    keys = list(model.state_dict())
    assert distribute(model, ctx) is model
    assert distribute(model, ctx, type_object="solver") is model
    assert isinstance(model, PGD)
    assert type(model).__name__ == "PGD"
    assert type(model).__mro__[1] is PGD, "wrapped once"
    assert list(model.state_dict()) == keys


def test_a_solver_is_distributed_in_place() -> None:
    in_place(DistributedContext())
    with pytest.raises(TypeError, match="a solver or a sampler"):
        distribute(Pixelwise(), DistributedContext(), type_object="solver")
    with pytest.raises(TypeError, match="patch_size has no meaning for solver"):
        distribute(PGD(data_fidelity=L2(), prior=Tikhonov()), DistributedContext(), patch_size=8)


# -- gradients -------------------------------------------------------------------------------------


def gradients(make: Callable[..., BaseOptim], prior: Callable[..., Prior], **options: Any) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        physics = Mixing(mask, max_iter=5)
        physics.implicit_backward_solver = False
        model = make(
            data_fidelity=L2(sigma=0.8), prior=prior(Pixelwise()), unfold=True,
            stepsize=[0.5, 0.4, 0.3], g_param=[0.1, 0.2, 0.3], lambda_reg=[0.9, 0.8, 0.7],
            trainable_params=["stepsize", "g_param", "lambda"], **{"max_iter": 3, **options},
        ).double()  # fmt: skip
        y = physics.A(x).requires_grad_()
        with sharded_factories():
            loss = (model(y, physics) - x).square().mean()
        used = [p for p in model.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, [y, *used], allow_unused=True)
        assert sum(entry is not None for entry in found) >= 4
        return [loss.detach(), *found]

    return run


def equilibrium(anderson: bool) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        physics = Mixing(mask)
        model = PGD(
            data_fidelity=L2(sigma=0.8), prior=PnP(Pixelwise()), stepsize=[0.5],
            sigma_denoiser=[0.1], max_iter=6, unfold=True,
            trainable_params=["stepsize", "sigma_denoiser"],
            DEQ=DEQConfig(
                jacobian_free=False, max_iter_backward=5, anderson_acceleration_backward=anderson
            ),
        ).double()  # fmt: skip
        with sharded_factories():
            loss = (model(physics.A(x), physics) - x).square().mean()
        loss.backward()
        return [p.grad for p in model.parameters()]

    return run


def run_gradients(ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]) -> None:
    full = AndersonAccelerationConfig(full_backprop=True)
    cases: dict[str, Case] = {
        "GD": gradients(GD, RED),
        "PGD": gradients(PGD, PnP),
        "FISTA": gradients(FISTA, PnP),
        "HQS": gradients(HQS, PnP),
        "ADMM": gradients(ADMM, PnP),
        "DRS": gradients(DRS, PnP),
        "PDCP": gradients(PDCP, PnP, stepsize_dual=0.5),
        "accelerated": gradients(PGD, PnP, anderson_acceleration=True),
        "accelerated, through its history": gradients(PGD, PnP, anderson_acceleration=full),
        "equilibrium": equilibrium(False),
        "equilibrium, accelerated": equilibrium(True),
    }
    cases = some_of(cases, mesh, shape)
    compare(ctx, cases, mesh, shape, rtol=1e-7, numbers=1024)


@pytest.mark.parametrize(("world_size", "mesh", "shape"), LAYOUTS)
def test_gradients(pool: WorkerPool, world_size: int, mesh: Any, shape: Any) -> None:
    pool.run(run_gradients, mesh, shape, world_size=world_size)


# -- with distributed blocks -----------------------------------------------------------------------


def with_blocks(ctx: DistributedContext, make: Callable[..., BaseOptim], **options: Any) -> Case:
    """A blur by space, a denoiser on tiles, a fidelity: all distributed, and the solver too."""
    network = Convolutional().double()

    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        generator = torch.Generator().manual_seed(2)
        kernel = torch.rand(1, 1, 3, 5, generator=generator, dtype=torch.float64)
        physics: Any = Blur(filter=kernel / kernel.sum(), padding="reflect", max_iter=4)
        fidelity: Any = L2(sigma=0.8)
        prior: Any = PnP(network)
        given = {"stepsize": 0.5, "g_param": 0.1, "max_iter": 3, "early_stop": False, **options}
        if isinstance(x, ShardedTensor):
            physics, fidelity = distribute(physics, ctx), distribute(fidelity, ctx)
            prior = distribute(prior, ctx, patch_size=8, overlap=2)
            model = distribute(make(data_fidelity=fidelity, prior=prior, **given), ctx)
        else:
            model = make(data_fidelity=fidelity, prior=prior, **given)
        return model(physics.A(x), physics, x_gt=x, compute_metrics=True)

    return run


def run_with_blocks(ctx: DistributedContext, mesh: Any) -> None:
    def measured(y: torch.Tensor, physics: Any) -> Any:
        return {"est": (physics.A_adjoint(y), physics.A_adjoint(y), torch.zeros_like(y))}

    cases = {
        "PGD": with_blocks(ctx, PGD),
        "FISTA": with_blocks(ctx, FISTA),
        "HQS": with_blocks(ctx, HQS),
        "DRS": with_blocks(ctx, DRS, beta=0.8),
        "PDCP": with_blocks(ctx, PDCP, stepsize_dual=0.5, custom_init=measured),
        "PGD, accelerated": with_blocks(ctx, PGD, anderson_acceleration=True),
    }
    # A denoiser's halo of two rows and its stride, and weights that are broadcast once.
    compare(
        ctx, cases, mesh, (2, 3, 16, 12), rtol=1e-7, numbers=1024, halo=8 * 2 * 3 * 24 * 8,
        setting_up=frozenset({"broadcast"}),
    )  # fmt: skip


@pytest.mark.parametrize(("world_size", "mesh"), [(1, None), (2, (1, 2)), (3, None), (4, (2, 2))])
def test_with_distributed_blocks(pool: WorkerPool, world_size: int, mesh: Any) -> None:
    pool.run(run_with_blocks, mesh, world_size=world_size)


# -- what is sent ----------------------------------------------------------------------------------


def bytes_of_an_iteration(ctx: DistributedContext, side: int) -> float:
    """Bytes that this rank sends in an iteration of PGD, as a share of the image."""
    x = ctx.ones((1, 3, side, side))
    physics = Inpainting((3, side, side), mask=x)
    y = physics.A(x)
    options: dict[str, Any] = {"stepsize": 0.5, "max_iter": 10, "early_stop": True}
    model = PGD(data_fidelity=L2(), prior=PnP(Pixelwise()), g_param=0.1, **options)
    ctx.ledger.reset()
    model(y, physics, x_gt=x, compute_metrics=True)
    assert {entry.operation for entry in ctx.ledger.entries()} <= {"all_reduce"}
    return ctx.ledger.bytes_sent / 10 / (x.numel() * 4)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_iteration_sends_numbers(pool: WorkerPool, world_size: int) -> None:
    for share in pool.run(bytes_of_an_iteration, 64, world_size=world_size):
        assert share < 0.002
