"""Unrolled solvers of ``deepinv.optim``: the undistributed output and gradients on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.optim import DRS, GD, HQS, PGD
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from deepinv.optim.prior import RED, PnP
from deepinv.physics import StackedLinearPhysics

from shardinv import DistributedDataFidelity, DistributedProcessing, distribute
from shardinv.context import DistributedContext
from tests.fidelity.test_solvers import Smooth
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
)
from tests.physics.stacks import Dense, Spectrum, image, quiet, random_like


def operators() -> list[Any]:
    return [Dense(25, seed=31), Spectrum(seed=32), Dense(20, seed=33)]


MODELS: dict[str, Callable[[Any], Any]] = {
    "PGD": lambda f: PGD(
        data_fidelity=f, prior=PnP(Smooth()), stepsize=[0.3, 0.4, 0.5], g_param=[0.1, 0.2, 0.1],
        max_iter=3, unfold=True, trainable_params=["stepsize", "g_param"],
    ),
    "a network for each iteration": lambda f: PGD(
        data_fidelity=f, prior=[PnP(Smooth()) for _ in range(3)], stepsize=[0.3] * 3,
        g_param=[0.1] * 3, max_iter=3, unfold=True, trainable_params=["stepsize"],
    ),
    "GD": lambda f: GD(
        data_fidelity=f, prior=RED(Smooth()), stepsize=0.3, lambda_reg=0.2, g_param=0.1,
        max_iter=3, unfold=True, trainable_params=["stepsize", "lambda"],
    ),
    "HQS": lambda f: HQS(
        data_fidelity=f, prior=PnP(Smooth()), stepsize=[0.6] * 2, g_param=[0.1] * 2,
        max_iter=2, unfold=True, trainable_params=["stepsize", "g_param"],
    ),
    "DRS": lambda f: DRS(
        data_fidelity=f, prior=PnP(Smooth()), stepsize=[0.6] * 2, g_param=[0.1] * 2, beta=0.8,
        max_iter=2, unfold=True, trainable_params=["stepsize", "beta"],
    ),
}  # fmt: skip


def compare(ctx: DistributedContext, tiles: dict[str, int]) -> list[Any]:
    physics, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    x = image(0)
    y = random_like(physics.A(x))
    found = []
    for name, make in MODELS.items():
        closed = name in ("HQS", "DRS")
        fidelity = L2(sigma=0.8) if closed else StackedPhysicsDataFidelity([L2(sigma=0.8)] * 3)
        reference = make(fidelity)
        model = make(L2(sigma=0.8))
        keys = list(model.state_dict())
        assert distribute(model, ctx, **tiles) is model
        assert isinstance(model.data_fidelity[0], DistributedDataFidelity)
        assert isinstance(model.prior[0].denoiser, DistributedProcessing)
        assert list(model.state_dict()) == keys
        with quiet():
            theirs, mine = reference(y, physics), model(y, ours)
        assert_close(mine, theirs, 1e-9, name)
        expected = dict(reference.named_parameters())
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        assert parameters.keys() == {n for n, p in expected.items() if p.requires_grad}
        assert len(parameters) > 3
        (theirs - x).square().sum().backward()
        (mine - x).square().sum().backward()
        for key, parameter in parameters.items():
            assert expected[key].grad.abs().max() > 0, key
            bound = 1e-6 if parameter.dtype == torch.float32 else 1e-9  # numbers of DeepInverse
            assert_close(parameter.grad, expected[key].grad, bound, f"{key} of {name}")
        found.append([parameter.grad for parameter in parameters.values()])
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_output_and_gradients(pool: WorkerPool, world_size: int) -> None:
    tiles = {"patch_size": 4, "overlap": 2} if world_size != 3 else {}
    assert_same_on_every_rank(pool.run(compare, tiles, world_size=world_size))


def train(ctx: DistributedContext) -> dict[str, torch.Tensor]:
    """Some steps of an optimizer from weights that differ: rank 0's, and together from then on."""
    physics, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    x = image(0)
    y = random_like(physics.A(x))
    reference = MODELS["PGD"](StackedPhysicsDataFidelity([L2()] * 3))
    model = MODELS["PGD"](L2())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * ctx.rank
    distribute(model, ctx, patch_size=4, overlap=2)
    for stack, net in ((physics, reference), (ours, model)):
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            (net(y, stack) - x).square().mean().backward()
            optimizer.step()
    mine = {name: p.detach() for name, p in model.named_parameters()}
    assert_close(mine, {n: p.detach() for n, p in reference.named_parameters()}, 1e-7)
    return mine


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_a_few_steps_of_training(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(train, world_size=world_size))


def not_unfolded(ctx: DistributedContext) -> None:
    model = PGD(data_fidelity=L2(), prior=PnP(Smooth()), max_iter=2)
    distribute(model, ctx, type_object="module")


def no_solver(ctx: DistributedContext) -> None:
    distribute(Smooth(), ctx, type_object="module")


@pytest.mark.parametrize(
    ("function", "message"),
    [(not_unfolded, "unfold=False.*unfold=True"), (no_solver, "solvers of deepinv.optim")],
)
def test_what_is_refused(pool: WorkerPool, function: Callable[..., None], message: str) -> None:
    assert_every_rank_raised(pool.run(function, expect_error=True), TypeError, message)
