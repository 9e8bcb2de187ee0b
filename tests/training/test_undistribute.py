"""The way back from distributed blocks: DeepInverse's own objects, with the weights of now."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.models import MedianFilter, TVDenoiser
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L1, L2, StackedPhysicsDataFidelity
from deepinv.optim.prior import PnP, Tikhonov, TVPrior

from shardinv import DistributedContext, distribute, undistribute
from tests.fidelity.test_solvers import Smooth
from tests.harness import WorkerPool, assert_close, assert_every_rank_raised
from tests.physics.stacks import image, quiet, random_like
from tests.training.test_unrolled import MODELS, TILES, Learned, Residual, blur, outcome


def kinds(module: torch.nn.Module) -> list[tuple[str, type]]:
    return [(name, type(part)) for name, part in module.named_modules()]


def solvers(ctx: DistributedContext) -> None:
    """Every solver: there, two steps of weights further, and back; states go both ways."""
    physics, y = blur(), random_like(blur().A(image(0)))
    with quiet():
        ours = distribute(blur(), ctx)
    for name, make in MODELS.items():
        reference, model = make(L2(sigma=0.8), blur(6)).double(), make(L2(sigma=0.8), blur(6))
        model.double()
        tiles = {} if "variation" in name else TILES
        distribute(model, ctx, **tiles)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.1
        state = model.state_dict()
        reference.load_state_dict(state)
        model.load_state_dict(reference.state_dict())
        with torch.no_grad(), quiet():
            distributed = model(y, ours)
        back = undistribute(model)
        assert back is model
        assert kinds(back) == kinds(reference), name
        assert list(back.state_dict()) == list(reference.state_dict()) == list(state)
        with torch.no_grad(), quiet():
            expected = reference(y, physics)
        assert_close(distributed, expected, 1e-9, name)
        data = y.clone().requires_grad_(), y.clone().requires_grad_()
        mine, theirs = outcome(back, data[0], physics, y), outcome(reference, data[1], physics, y)
        assert_close(mine, theirs, 1e-14, f"{name}, moved back")
        if name == "total variation":
            continue  # goes on from the solution of the call before
        distribute(back, ctx, **tiles)
        with torch.no_grad(), quiet():
            assert_close(back(y, ours), expected, 1e-9, f"{name}, distributed again")


def test_solvers(pool: WorkerPool) -> None:
    pool.run(solvers, world_size=2)


def blocks(ctx: DistributedContext) -> None:
    network = Smooth()
    assert undistribute(distribute(network, ctx, **TILES)) is network
    function = MedianFilter(3)
    assert undistribute(distribute(function, ctx, **TILES)) is function
    fidelity = L2(sigma=0.3)
    assert undistribute(distribute(fidelity, ctx)) is fidelity
    terms = [L2(), L1()]
    listed = undistribute(distribute(terms, ctx))
    assert type(listed) is StackedPhysicsDataFidelity
    assert listed.data_fidelity_list == terms
    prior = distribute(PnP(network), ctx, **TILES)
    plain = undistribute(prior)
    assert type(plain) is PnP
    assert plain.denoiser is network
    assert prior.denoiser is not network, "the distributed one stays"
    variation = distribute(TVPrior(n_it_max=3), ctx)
    plain = undistribute(variation)
    assert type(plain.TVModel) is TVDenoiser
    assert type(variation.TVModel) is not TVDenoiser
    x = image(0)
    assert_close(plain.prox(x, gamma=0.1), TVPrior(n_it_max=3).prox(x, gamma=0.1), 0.0)
    untouched = Tikhonov()
    assert undistribute(untouched) is untouched
    iterative = PGD(
        data_fidelity=distribute(fidelity, ctx), prior=distribute(PnP(network), ctx, **TILES)
    )
    iterative = undistribute(distribute(iterative, ctx))
    assert type(iterative) is PGD
    assert iterative.data_fidelity[0] is fidelity
    assert iterative.prior[0].denoiser is network
    nets = [Smooth(), Residual(2)]
    module = Learned(
        distribute(fidelity, ctx), [distribute(PnP(net), ctx, **TILES) for net in nets]
    )
    assert undistribute(module) is module
    assert kinds(module) == kinds(Learned(L2(), [PnP(Smooth()), PnP(Residual(2))]))
    assert [p.denoiser for p in module.priors] == nets


def test_blocks(pool: WorkerPool) -> None:
    pool.run(blocks, world_size=2)


def operators(ctx: DistributedContext, strategy: str) -> None:
    undistribute(distribute([blur(), blur(6)], ctx, strategy=strategy))


def holder(ctx: DistributedContext) -> None:
    model = Learned(L2(), [distribute(PnP(Smooth()), ctx, **TILES)])
    model.physics = distribute([blur(), blur(6)], ctx)
    try:
        undistribute(model)
    finally:
        assert model.priors[0].denoiser is not undistribute(model.priors[0].denoiser)


def factory(ctx: DistributedContext) -> None:
    undistribute(distribute(lambda *_: L2(), ctx, type_object="data_fidelity", num_operators=2))


def no_module(ctx: DistributedContext) -> None:
    undistribute([L2()])


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (operators, ("operator",), "this is a distributed operator .*keep the operator"),
        (operators, ("space",), "this is a distributed operator .*keep the operator"),
        (holder, (), "Learned.physics is a distributed operator"),
        (factory, (), "a factory made.*call the factory"),
        (no_module, (), "is needed, got a list"),
    ],
)  # fmt: skip
def test_what_is_refused(pool: WorkerPool, function: Any, arguments: Any, message: str) -> None:
    outcomes = pool.run(function, *arguments, expect_error=True)
    assert_every_rank_raised(outcomes, TypeError, message)
