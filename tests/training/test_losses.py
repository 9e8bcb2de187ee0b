"""Losses of ``deepinv.loss`` that reach through a distributed stack.

DeepInverse's measurement-consistency loss and its SURE losses take single tensors; on a list only a
metric that knows lists works, undistributed too. These do, and the stack is no obstacle to them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.loss import EILoss, MCLoss
from deepinv.physics import StackedLinearPhysics
from deepinv.transform import Shift
from torch import nn

from shardinv import RemoteEntryError, distribute
from shardinv.context import DistributedContext
from tests.harness import WorkerPool, assert_close, gradients
from tests.physics.stacks import Dense, Gradients, flat, image, random_like


class SquaredError(nn.Module):
    """A mean squared error of lists, complex and nested ones too."""

    def forward(self, estimate: Any, y: Any) -> torch.Tensor:
        pairs = list(zip(flat(estimate), flat(y), strict=True))
        return sum((a - b).abs().square().mean() for a, b in pairs) / len(pairs)


class Backprojection(nn.Module):
    """A reconstruction with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, y: Any, physics: Any, **_: Any) -> torch.Tensor:
        return self.scale * physics.A_adjoint(y)


def losses(ctx: DistributedContext) -> None:
    operators = [Dense(20, seed=1), Gradients(), Dense(18, seed=2)]
    physics, ours = StackedLinearPhysics(operators), distribute(operators, ctx)
    y = random_like(physics.A(image(0)))
    model = Backprojection()

    def consistency(stack: Any) -> Any:
        return lambda x: MCLoss(metric=SquaredError())(y=y, x_net=x, physics=stack)

    mine, theirs = gradients(consistency(ours), image(1)), gradients(consistency(physics), image(1))
    assert_close(mine, theirs, 1e-11, "measurement consistency")

    def equivariance(stack: Any) -> torch.Tensor:
        torch.manual_seed(2)  # for the shift
        loss = EILoss(Shift())(x_net=model(y, stack), physics=stack, model=model)
        (slope,) = torch.autograd.grad(loss, model.scale)
        return torch.stack([loss.detach(), slope])

    assert_close(equivariance(ours), equivariance(physics), 1e-11, "equivariance")


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_losses(pool: WorkerPool, world_size: int) -> None:
    pool.run(losses, world_size=world_size)


def one_operator_after_the_other(ctx: DistributedContext) -> None:
    """What needs operators one by one is told where they are."""
    ours = distribute([Dense(20, seed=1), Dense(18, seed=2)], ctx)
    other = next(index for index in range(2) if index not in ours.ownership.mine)
    with pytest.raises(RemoteEntryError, match=f"operator {other} is on rank {1 - ctx.rank}"):
        MCLoss()(y=torch.zeros(2, 18), x_net=image(0), physics=ours[other])


def test_an_operator_of_another_rank(pool: WorkerPool) -> None:
    pool.run(one_operator_after_the_other, world_size=2)
