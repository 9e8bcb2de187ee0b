"""Parameters handed to ``distribute`` by themselves: rank 0's values, averaged gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_every_rank_raised


def weight(rank: int, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.arange(6.0, dtype=torch.float64).view(2, 3).to(dtype) + 10 * rank)


def averages(ctx: DistributedContext) -> None:
    single = weight(ctx.rank)
    assert distribute(single, ctx) is single
    assert_close(single.detach(), weight(0).detach(), 0.0, "rank 0's values")
    data = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64) * (ctx.rank + 1)
    mean = data / (ctx.rank + 1) * (ctx.world_size + 1) / 2
    (single * data).sum().backward()
    assert_close(single.grad, mean.expand(2, 3), 1e-12, "backward")
    (gradient,) = torch.autograd.grad((single * data).sum(), single)
    assert_close(gradient, mean.expand(2, 3), 1e-12, "autograd.grad")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gradients_are_averaged(pool: WorkerPool, world_size: int) -> None:
    pool.run(averages, world_size=world_size)


def many(ctx: DistributedContext) -> None:
    """A list, of several types; each in the order of the list, however gradients arrive."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += ctx.rank
    parameters = list(network.parameters())
    parameters += [weight(ctx.rank, torch.complex128), weight(ctx.rank, torch.float32)]
    assert distribute(parameters, ctx) is parameters
    reference = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    reference.load_state_dict(network.state_dict())
    batches = [torch.randn(5, 3, generator=torch.Generator().manual_seed(r)) for r in range(4)]
    network(batches[ctx.rank]).square().sum().backward()
    for rank in range(ctx.world_size):
        (reference(batches[rank]).square().sum() / ctx.world_size).backward()
    for mine, theirs in zip(network.parameters(), reference.parameters()):
        assert_close(mine.grad, theirs.grad, 1e-5)
    assert_close(parameters[-2].detach(), weight(0, torch.complex128).detach(), 0.0)
    (parameters[-2] * (ctx.rank + 1j)).real.sum().backward()
    ranks = (ctx.world_size - 1) / 2
    assert_close(parameters[-2].grad, torch.full((2, 3), ranks - 1j, dtype=torch.complex128), 1e-12)


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_a_list_of_parameters(pool: WorkerPool, world_size: int) -> None:
    pool.run(many, world_size=world_size)


def refuse(ctx: DistributedContext, options: dict[str, Any]) -> None:
    distribute(weight(0), ctx, **options)


@pytest.mark.parametrize("options", [{"patch_size": 4}, {"reduction": "sum"}])
def test_options_of_other_blocks(pool: WorkerPool, options: dict[str, Any]) -> None:
    outcomes = pool.run(refuse, options, expect_error=True)
    assert_every_rank_raised(outcomes, TypeError, "no meaning for parameters")
