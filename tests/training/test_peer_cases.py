"""Gradients that go wrong elsewhere, and the right value here; see ``tests/test_peer_cases.py``.

Cases 1 to 5, 25 and 28 of its list; 13 is in ``tests/exchange/test_cotangents.py`` (losses) and
``tests/denoise/test_statistics.py`` (batch-norm), 21 in ``test_losses.py``, 27 in
``test_trainer.py``. Each is short; ``test_gradient_parity.py`` goes deeper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.physics import Blur, StackedLinearPhysics
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from shardinv.exchange import DisagreementError
from tests.denoise.networks import Conditioned
from tests.harness import (
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
)

ROUNDING = 1e-12
TILES = {"patch_size": 8, "overlap": 2}


def image() -> Tensor:
    return torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network() -> Conditioned:
    torch.manual_seed(3)
    return Conditioned()


def upstream() -> nn.Conv2d:
    torch.manual_seed(4)
    return nn.Conv2d(1, 1, 3, padding=1, dtype=torch.float64)


def stack() -> StackedLinearPhysics:
    generator = torch.Generator().manual_seed(5)
    kernels = torch.rand(5, 1, 1, 3, 3, generator=generator, dtype=torch.float64)
    return StackedLinearPhysics([Blur(k / k.sum(), padding="circular") for k in kernels])


def case_1(ctx: DistributedContext) -> Tensor:
    """The gradient of a tiled denoiser's input, on each rank and not in the mean over ranks."""
    found, expected = [
        torch.autograd.grad(denoiser(x, 0.2).square().sum(), x)[0]
        for denoiser in (distribute(network(), ctx, **TILES), network())
        for x in [image().requires_grad_()]
    ]
    assert_close(found, expected, ROUNDING)
    return found


def case_2(ctx: DistributedContext) -> list[Tensor]:
    """Weights of a plain module whose output a tiled denoiser reads."""
    gradients = []
    for denoiser in (distribute(network(), ctx, **TILES), network()):
        before = upstream()
        denoiser(before(image()), 0.2).square().sum().backward()
        gradients.append([p.grad for p in before.parameters()])
    assert_close(*gradients, ROUNDING)
    return gradients[0]  # type: ignore[return-value]


def case_3(ctx: DistributedContext) -> list[Tensor]:
    """``autograd.grad`` gives every weight's whole gradient, and leaves ``.grad`` as it was."""
    found = []
    for denoiser in (distribute(network(), ctx, **TILES), network()):
        weights = list(denoiser.parameters())
        for weight in weights:
            weight.grad = torch.full_like(weight, 7.0)
        found.append(torch.autograd.grad(denoiser(image(), 0.2).square().sum(), weights))
        assert all((weight.grad == 7).all() for weight in weights)
    assert_close(list(found[0]), list(found[1]), ROUNDING)
    return list(found[0])


def case_4(ctx: DistributedContext) -> list[Tensor]:
    """With ``create_graph`` no derivative is multiplied by the number of ranks."""
    found = []
    for denoiser in (distribute(network(), ctx, **TILES), network()):
        x, weights = image().requires_grad_(), list(denoiser.parameters())
        both = [x, *weights]
        first = torch.autograd.grad(denoiser(x, 0.2).square().sum(), both, create_graph=True)
        penalty = sum(g.square().sum() for g in first)
        found.append([*first, *torch.autograd.grad(penalty, both)])
    assert_close(*found, ROUNDING)
    return [g.detach() for g in found[0]]


def gathered(ctx: DistributedContext, strategy: str) -> Tensor:
    """Backward through measurements that were gathered."""
    found = []
    for physics in (distribute(stack(), ctx, gather_strategy=strategy), stack()):
        x = image().requires_grad_()
        loss: Any = sum((n + 1) * y.square().sum() for n, y in enumerate(physics.A(x)))
        loss.backward()
        found.append(x.grad)
    assert_close(*found, ROUNDING)
    return found[0]  # type: ignore[return-value]


def case_5(ctx: DistributedContext) -> Tensor:
    """The strategy that elsewhere loses the gradient."""
    return gathered(ctx, "naive")


def case_25(ctx: DistributedContext) -> Tensor:
    """The strategy whose backward pass elsewhere hangs."""
    return gathered(ctx, "broadcast")


def case_28(ctx: DistributedContext) -> Tensor:
    """Two tiles on three ranks, of an image that isn't contiguous and needs a gradient."""
    options = {"patch_size": (8, 16), "overlap": 2}
    found = []
    for denoiser in (distribute(network(), ctx, **options), network()):
        x = image().transpose(2, 3).requires_grad_()
        assert not x.is_contiguous()
        denoiser(x, 0.2).square().sum().backward()
        found.append(x.grad)
    assert_close(*found, ROUNDING)
    return found[0]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("case", "world_size"),
    [(case_1, 2), (case_2, 2), (case_3, 2), (case_4, 2), (case_5, 2), (case_25, 2), (case_28, 3)],
    ids=["1", "2", "3", "4", "5", "25", "28"],
)
def test_case(pool: WorkerPool, case: Callable[..., Any], world_size: int) -> None:
    assert_same_on_every_rank(pool.run(case, world_size=world_size))


def needed_on_one_rank(ctx: DistributedContext, block: str) -> None:
    """An input that needs a gradient on rank 0 only: elsewhere it has half of it, or waits."""
    x = image().requires_grad_(ctx.rank == 0)
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=ctx.rank == 0)
    kernel = torch.ones(1, 1, 3, 3, dtype=torch.float64, requires_grad=ctx.rank == 0)
    loss = {
        "denoiser": lambda: distribute(network().requires_grad_(False), ctx, **TILES)(x, 0.2),
        "physics": lambda: distribute(stack(), ctx).A_adjoint_A(x),
        "gather": lambda: ctx.gather(ctx.shard(x)),
        "sum": lambda: ctx.shard(x).sum(),
        "operand": lambda: ctx.shard(image()) * scale,
        "kernel": lambda: torch.nn.functional.conv2d(ctx.shard(image()), kernel, padding=1),
        "step": lambda: distribute(stack(), ctx).prox_l2(image(), stack().A(image()), scale),
    }[block]()
    if loss.requires_grad:
        loss.square().sum().backward()


@pytest.mark.parametrize(
    "block", ["denoiser", "physics", "gather", "sum", "operand", "kernel", "step"]
)
def test_input_that_needs_a_gradient_on_one_rank_only(pool: WorkerPool, block: str) -> None:
    outcomes = pool.run(needed_on_one_rank, block, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, DisagreementError, "gradient")
