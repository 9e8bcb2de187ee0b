"""Solvers of ``deepinv.optim``, unchanged, take the same iterates with distributed blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.models import Denoiser
from deepinv.optim import ADMM, DRS, FISTA, GD, HQS, PDCP, PGD
from deepinv.optim.data_fidelity import L1, L2, StackedPhysicsDataFidelity
from deepinv.optim.optimizers import BacktrackingConfig
from deepinv.optim.prior import RED, PnP, Tikhonov, TVPrior
from deepinv.physics import StackedLinearPhysics

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import WorkerPool, assert_close, assert_same_on_every_rank
from tests.physics.stacks import (
    Dense,
    Spectrum,
    generator,
    image,
    linear_operators,
    quiet,
    random_like,
)


class Smooth(Denoiser):
    """A network that sees one pixel around: on tiles with a halo of two it is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.conv.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator(7)) / 6)

    def forward(self, x: torch.Tensor, sigma: Any = None, **_: Any) -> torch.Tensor:
        level = self._handle_sigma(sigma, reference_tensor=x)
        return 0.9 * x + level * torch.tanh(self.conv(x))


COUNT = 3


def operators() -> list[Any]:
    return [Dense(25, seed=31), Spectrum(seed=32), Dense(20, seed=33)]


COMMON: dict[str, Any] = {"max_iter": 6, "stepsize": 0.4, "early_stop": False}

SOLVERS: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[[], Any]]] = {
    "PGD, plug-and-play": (PGD, {"g_param": 0.1}, lambda: PnP(Smooth())),
    "PGD, total variation": (PGD, {"lambda_reg": 0.05}, lambda: TVPrior(n_it_max=5)),
    "FISTA, plug-and-play": (FISTA, {"g_param": 0.1}, lambda: PnP(Smooth())),
    "GD, by denoising": (GD, {"g_param": 0.1, "lambda_reg": 0.2}, lambda: RED(Smooth())),
    "HQS": (HQS, {"g_param": 0.1}, lambda: PnP(Smooth())),
    "ADMM": (ADMM, {"g_param": 0.1, "beta": 0.8}, lambda: PnP(Smooth())),
    "DRS": (DRS, {"g_param": 0.1, "beta": 0.8}, lambda: PnP(Smooth())),
    "DRS, prior first": (DRS, {"g_param": 0.1, "g_first": True}, lambda: PnP(Smooth())),
    "primal-dual": (
        PDCP,
        {
            "g_param": 0.1,
            "stepsize_dual": 0.5,
            "custom_init": lambda y, physics: {"est": (physics.A_adjoint(y),) * 3},
        },
        lambda: PnP(Smooth()),
    ),
}


def run(ctx: DistributedContext, names: list[str]) -> list[torch.Tensor]:
    physics, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    x = image(0)
    y = random_like(physics.A(x))
    found = []
    for name in names:
        make, options, prior = SOLVERS[name]
        tiles = {} if "variation" in name else {"patch_size": 4, "overlap": 2}
        # The L2 of DeepInverse has no value for a list, so metrics of cost need the stacked one.
        stacked = StackedPhysicsDataFidelity([L2(sigma=0.8)] * COUNT)
        closed = name.split(",")[0] not in ("PGD", "FISTA", "GD")
        with quiet(), torch.no_grad():
            theirs, expected = make(
                data_fidelity=L2(sigma=0.8) if closed else stacked, prior=prior(),
                **{**COMMON, **options},
            )(y, physics, x_gt=x, compute_metrics=True)  # fmt: skip
            mine, metrics = make(
                data_fidelity=distribute(L2(sigma=0.8), ctx),
                prior=distribute(prior(), ctx, **tiles),
                **{**COMMON, **options},
            )(y, ours, x_gt=x, compute_metrics=True)
            assert_close(mine, theirs, 1e-9, name)
            for metric in ("psnr", "residual"):
                pair = torch.tensor(metrics[metric]), torch.tensor(expected[metric])
                assert_close(*pair, 1e-5, f"{metric} of {name}")
            owned = make(
                data_fidelity=distribute(L2(sigma=0.8), ctx),
                prior=distribute(prior(), ctx, **tiles),
                **{**COMMON, **options},
            )(ours.own(y), ours)
        assert_close(owned, theirs, 1e-9, f"{name}, of measurements that know their owner")
        found.append(mine)
    return found


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_solvers(pool: WorkerPool, world_size: int) -> None:
    results = pool.run(run, list(SOLVERS), world_size=world_size)
    assert_same_on_every_rank(results)


def backtrack(ctx: DistributedContext) -> None:
    """A step that is far too long is shortened as often, and the costs are the same numbers."""
    physics, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    y = random_like(physics.A(image(0)))
    options: dict[str, Any] = {
        "prior": Tikhonov(),
        "stepsize": 30.0,
        "lambda_reg": 0.3,
        "max_iter": 12,
        "backtracking": BacktrackingConfig(gamma=0.1, eta=0.5),
    }
    for make in (PGD, GD):
        reference = make(data_fidelity=StackedPhysicsDataFidelity([L2()] * COUNT), **options)
        model = make(data_fidelity=distribute(L2(), ctx), **options)
        theirs, expected = reference(y, physics, x_gt=image(0), compute_metrics=True)
        mine, metrics = model(y, ours, x_gt=image(0), compute_metrics=True)
        assert_close(mine.detach(), theirs.detach(), 1e-9, make.__name__)
        step = float(reference.params_algo["stepsize"][0])
        assert step < 30.0, "no backtracking took place"
        assert float(model.params_algo["stepsize"][0]) == step
        assert_close(torch.tensor(metrics["cost"]), torch.tensor(expected["cost"]), 1e-6, "cost")


@pytest.mark.parametrize("world_size", (1, 3))
def test_backtracking(pool: WorkerPool, world_size: int) -> None:
    pool.run(backtrack, world_size=world_size)


def stop_early(ctx: DistributedContext, criterion: str) -> int:
    physics, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    y = random_like(physics.A(image(0)))
    options: dict[str, Any] = {
        "prior": Tikhonov(),
        "stepsize": 0.5,
        "lambda_reg": 0.5,
        "max_iter": 200,
        "early_stop": True,
        "crit_conv": criterion,
        "thres_conv": 1e-4,
    }
    reference = PGD(data_fidelity=StackedPhysicsDataFidelity([L2()] * COUNT), **options)
    theirs, expected = reference(y, physics, compute_metrics=True)
    model = PGD(data_fidelity=distribute(L2(), ctx), **options)
    mine, metrics = model(y, ours, compute_metrics=True)
    assert_close(mine.detach(), theirs.detach(), 1e-9)
    assert len(metrics["residual"][0]) == len(expected["residual"][0])
    return len(metrics["residual"][0])


@pytest.mark.parametrize("criterion", ["residual", "cost"])
@pytest.mark.parametrize("world_size", (1, 3))
def test_early_stopping(pool: WorkerPool, world_size: int, criterion: str) -> None:
    iterations = pool.run(stop_early, criterion, world_size=world_size)
    assert len(set(iterations)) == 1
    assert 3 < iterations[0] < 200


def other_fidelities(ctx: DistributedContext) -> None:
    """L1 by its dual iteration inside a splitting method: no rank waits for another."""
    ours = distribute(linear_operators(4), ctx)
    y = ours.A(image(0))
    model = DRS(data_fidelity=distribute(L1(), ctx), prior=Tikhonov(), max_iter=2, stepsize=0.5)
    with torch.no_grad():
        assert torch.isfinite(model(y, ours)).all()


def test_a_splitting_method_with_l1(pool: WorkerPool) -> None:
    pool.run(other_fidelities, world_size=3, timeout=30)
