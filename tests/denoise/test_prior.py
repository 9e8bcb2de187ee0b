"""Priors: their network on tiles, or, without one, the very same values on every rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from deepinv.models import GSDRUNet
from deepinv.optim.prior import (
    RED,
    L1Prior,
    PnP,
    Prior,
    ScorePrior,
    Tikhonov,
    TVPrior,
    WaveletPrior,
)
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from shardinv.denoise import DistributedProcessing
from tests.denoise.networks import Conditioned, ffdnet
from tests.harness import WorkerPool, assert_close, assert_same_on_every_rank

TILES = {"patch_size": 16, "overlap": 8}


def learned_priors(ctx: DistributedContext) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.rand(1, 1, 40, 24, dtype=torch.float64)
    results = []
    calls: dict[type[Prior], Callable[[Any], Tensor]] = {
        PnP: lambda prior: prior.prox(x, 0.1),
        RED: lambda prior: prior.grad(x, 0.1),
        ScorePrior: lambda prior: prior.grad(x, 0.1) + prior.score(x, 0.1),
    }
    for kind, evaluate in calls.items():
        prior = kind(ffdnet())
        network = prior.denoiser
        twin = distribute(prior, ctx, **TILES)
        assert type(twin) is kind
        assert isinstance(twin.denoiser, DistributedProcessing)
        assert prior.denoiser is network, "the prior that was given stays as it is"
        assert list(twin.state_dict()) == list(prior.state_dict())
        assert len(twin.denoiser.schedule((40, 24)).grid.tiles) > 1
        with torch.no_grad():
            results.append(evaluate(twin))
            assert_close(results[-1], evaluate(prior), 1e-12, kind.__name__)
            assert_close(evaluate(deepcopy(twin)), results[-1], 0.0, f"copy of {kind.__name__}")
        assert distribute(twin, ctx, patch_size=4) is twin
    return results


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_priors_with_a_network(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(learned_priors, world_size=world_size))


def function_as_denoiser(ctx: DistributedContext) -> None:
    prior = PnP(lambda image, sigma: torch.tanh(image) * (1 - sigma))
    twin = distribute(prior, ctx, patch_size=8, overlap=0)
    x = torch.rand(1, 1, 40, 24)
    assert_close(twin.prox(x, 0.1), prior.prox(x, 0.1), 0.0)


def test_prior_with_a_function(pool: WorkerPool) -> None:
    pool.run(function_as_denoiser, world_size=2)


class GradientStepPrior(RED):
    """As users write it: the network also gives the prior's value."""

    def fn(self, x: Tensor, sigma: float) -> Tensor:
        return self.denoiser.potential(x, sigma)


def gradient_step_prior(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    prior = GradientStepPrior(GSDRUNet(in_channels=1, out_channels=1, nb=1, nc=(2, 2, 2, 2)))
    twin = distribute(prior, ctx, patch_size=32, overlap=32)
    x = torch.rand(1, 1, 64, 32)
    assert_close(twin.fn(x, 0.1).detach(), prior.fn(x, 0.1).detach(), 1e-6)
    with torch.no_grad():
        assert_close(twin.grad(x, 0.1), prior.grad(x.clone(), 0.1), 1e-4)


def test_prior_that_asks_its_network_for_more(pool: WorkerPool) -> None:
    pool.run(gradient_step_prior, world_size=2)


def explicit_priors(ctx: DistributedContext) -> list[Tensor]:
    x = torch.randn(2, 1, 16, 16)
    results = []
    priors = [TVPrior(n_it_max=20), Tikhonov(), L1Prior()]
    if importlib.util.find_spec("ptwt"):
        priors.append(WaveletPrior(level=2, wv="db2"))
    for prior in priors:
        name = type(prior).__name__
        reference = deepcopy(prior)
        twin = distribute(prior, ctx)
        assert type(twin) is type(prior)
        assert list(twin.state_dict()) == list(reference.state_dict())
        for _ in range(2):  # total variation starts from where it ended
            mine, expected = ([p.fn(x), p.prox(x, gamma=0.3), p.grad(x)] for p in (twin, reference))
            assert_close(mine, expected, 0.0, f"value, prox and gradient of {name}")
            results += mine
        with pytest.raises(ValueError, match=f"{name} has no network to run on tiles"):
            distribute(prior, ctx, patch_size=8)
    assert ctx.ledger.calls == 0
    return results


@pytest.mark.parametrize("world_size", [1, 2])
def test_priors_without_a_network(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(explicit_priors, world_size=world_size))


class WeightedTikhonov(Prior):
    """An explicit prior that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(()))

    def fn(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.weight * x.flatten(1).square().sum(1)


def prior_with_weights(ctx: DistributedContext) -> Tensor:
    torch.manual_seed(ctx.rank)
    return distribute(WeightedTikhonov(), ctx).weight.detach()


def test_weights_of_an_explicit_prior_are_those_of_rank_0(pool: WorkerPool) -> None:
    torch.manual_seed(0)
    expected = torch.rand(())
    assert_close(pool.run(prior_with_weights, world_size=3), [expected] * 3, 0.0)


def prior_in_a_loop(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    network = Conditioned()
    prior = distribute(PnP(network), ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 20, 16, dtype=torch.float64)
    loss = prior.prox(prior.prox(x, 0.1), 0.2).square().sum()
    expected = network(network(x, 0.1), 0.2).square().sum()
    weights = list(network.parameters())
    assert_close(
        torch.autograd.grad(loss, list(prior.parameters())),
        torch.autograd.grad(expected, weights),
        1e-11,
    )


@pytest.mark.parametrize("world_size", [1, 3])
def test_gradient_through_a_prior(pool: WorkerPool, world_size: int) -> None:
    pool.run(prior_in_a_loop, world_size=world_size)
