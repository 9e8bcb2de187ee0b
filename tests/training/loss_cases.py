"""What the tests of losses share: a reconstruction with weights, operators, how a loss is called.

Everything is built anew from fixed seeds, so the reference and what is distributed share nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from deepinv.loss import Loss
from deepinv.physics import Blur, Inpainting
from deepinv.utils.tensorlist import TensorList
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from tests.physics.space.operators import draw, kernel

SPATIAL = (16, 14)
SHAPE = (2, 1, *SPATIAL)
D = torch.float64


class Network(nn.Module):
    """A residual network of two convolutions that keeps the image's size."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2, 3, padding=1, dtype=D)
        self.last = nn.Conv2d(2, channels, 3, padding=1, dtype=D)

    def forward(self, x: Tensor, sigma: Any = None) -> Tensor:
        return x + self.last(torch.tanh(self.first(x)))


class Reconstruction(nn.Module):
    """One gradient step from zero, then a network: it has a step size and weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.step = nn.Parameter(torch.tensor(0.7, dtype=D))
        self.network: nn.Module = Network()
        self.layout: Any = None

    def forward(self, y: Any, physics: Any, **_: Any) -> Tensor:
        options = {} if self.layout is None else {"layout": self.layout}
        return self.network(self.step * physics.A_adjoint(y, **options))


def over_ranks(ctx: DistributedContext) -> Reconstruction:
    """The reconstruction, its network on overlapping tiles."""
    model = Reconstruction()
    model.network = distribute(model.network, ctx, type_object="denoiser", patch_size=8, overlap=4)
    return model


def whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def mask(seed: int = 3) -> Tensor:
    return (draw(1, *SPATIAL, seed=seed) > -0.3).to(D)


def blur(seed: int) -> Blur:
    weights = kernel(1, 1, 3, 3, seed=seed)
    return Blur(filter=weights / weights.sum(), padding="circular")


def inpainting(seed: int = 3) -> Inpainting:
    return Inpainting((1, *SPATIAL), mask=mask(seed))


def measured(physics: Any, seed: int = 0) -> Any:
    """Measurements in (0, 1] of a picture, a little wrong."""
    y = physics.A(draw(*SHAPE, seed=seed).sigmoid())

    def wrong(entry: Tensor, number: int) -> Tensor:
        return entry + 0.05 * draw(*entry.shape, seed=50 + number).abs()

    if isinstance(y, Tensor):
        return wrong(y, 0)
    return TensorList([wrong(y[i], i) for i in range(len(y))])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def steps(
    loss: Loss, model: nn.Module, physics: Any, y: Any, x: Any = None, times: int = 2
) -> list[Tensor]:
    """Value and gradient of a loss, as a trainer calls it; several times, since it may draw.

    The gradient is that of all weights, in one tensor: one that is zero has no relative error.
    Where the loss adapts the model, its output in evaluation is last.
    """
    adapted = loss.adapt_model(model)
    results = []
    for _ in range(times):
        x_net = adapted(y, physics, update_parameters=True)
        value = loss(x=x, x_net=x_net, y=y, physics=physics, model=adapted, epoch=0)
        slopes = torch.autograd.grad(value.mean(), list(model.parameters()), allow_unused=True)
        used = [slope.flatten() for slope in slopes if slope is not None]
        results += [whole(value.detach()), torch.cat(used)]
    if adapted is not model:
        adapted.eval()
        results.append(whole(adapted(y, physics).detach()))
        adapted.train()
    return results
