"""A loss that ranks don't share is an error on every rank, in the backward pass that shows it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shardinv import DistributedContext, distribute
from shardinv.exchange import DisagreementError, fan_out, sum_over_ranks
from tests.denoise.networks import Conditioned
from tests.harness import WorkerPool, assert_every_rank_raised


def loss_of(ctx: DistributedContext, out: Tensor, kind: str) -> Tensor:
    if kind == "on rank 0 alone":
        return out.square().sum() * (1.0 if ctx.is_main else 0.0)
    if kind == "of other values":
        return (out * torch.linspace(ctx.rank, 1 + ctx.rank, out.numel()).view(out.shape)).sum()
    return out.square().sum() * (1 + 1e-7 * ctx.rank)  # alike to rounding


def denoise(ctx: DistributedContext, kind: str) -> None:
    block = distribute(Conditioned(), ctx, patch_size=6, overlap=2)
    x = torch.rand(1, 1, 6 * ctx.world_size, 6, dtype=torch.float64, requires_grad=True)
    loss_of(ctx, block(x, 0.1), kind).backward()
    assert torch.autograd.grad(block(x, 0.1).sum(), x)[0].abs().max() > 0
    assert not ctx.comm.checking


def reduce(ctx: DistributedContext, kind: str) -> None:
    x = torch.ones(40, requires_grad=True)
    (local,), token = fan_out(ctx.comm, x)
    out = sum_over_ranks(ctx.comm, local * local, token)
    torch.autograd.grad(loss_of(ctx, out, kind), x)


@pytest.mark.parametrize("program", [denoise, reduce])
@pytest.mark.parametrize("world_size", [2, 3])
def test_losses_that_ranks_do_not_share(pool: WorkerPool, world_size: int, program: object) -> None:
    """Peer's case 13: a loss on rank 0 alone gave a part of the gradient without a word."""
    for kind in ("on rank 0 alone", "of other values"):
        outcomes = pool.run(program, kind, world_size=world_size, expect_error=True)
        assert_every_rank_raised(
            outcomes, DisagreementError, "ranks disagree on the gradient.*rank 1"
        )
    pool.run(program, "of all", world_size=world_size)
