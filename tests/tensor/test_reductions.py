"""Reductions: collective ones give plain tensors, the same on every rank; others stay local."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shardinv import DistributedContext
from shardinv.tensor import ShardedTensor, UnsupportedOperation
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.tensor.compare import compare, meshes, run_cases

ALL: dict[str, Callable[..., Any]] = {
    "sum": lambda x: [x.sum(), torch.sum(x, dim=(1, 2, 3)), x.sum((0, 2, 3), keepdim=True)],
    "sum in the box": lambda x: [x.sum(1), x.sum(0, keepdim=True), torch.sum(x, axis=1)],
    "mean": lambda x: [x.mean(), x.mean(dim=(-2, -1)), torch.mean(x, (2, 3), True), x.mean(1)],
    "nansum": lambda x: torch.nansum(x),
    "norms": lambda x: [
        x.norm(),
        torch.norm(x, p=1),
        torch.norm(x, 2, dim=(1, 2, 3), keepdim=True),
        torch.linalg.norm(x.flatten()),
        torch.linalg.norm(x.flatten(), ord=3),
        torch.linalg.vector_norm(x, dim=(1, 2, 3), ord=1.5),
        torch.linalg.vector_norm(x, dim=1, keepdim=True),
        torch.linalg.vector_norm(x.reshape(2, -1), dim=-1),
        x.flatten(1).norm(dim=1, p=2),
    ],
    "odd norms": lambda x: [
        torch.linalg.vector_norm(x, ord=float("inf")),
        torch.linalg.vector_norm(x, ord=-float("inf"), dim=(1, 2, 3)),
    ],
    "products": lambda x: [
        torch.dot(x.flatten(), x.flatten() * 2),
        x.flatten().vdot(x.reshape(-1)),
        torch.linalg.vecdot(x.flatten(1), x.flatten(1).sin(), dim=-1),
        torch.inner(x.ravel(), x.ravel()),
    ],
    "losses": lambda x: [
        F.mse_loss(x, x.sin()),
        F.l1_loss(x, 2 * x, reduction="sum"),
        F.smooth_l1_loss(x, x * x, reduction="none"),
        F.huber_loss(x, x.cos()),
    ],
    "normalised": lambda x: [F.normalize(x), F.normalize(x, dim=(1, 2, 3))],
    "along channels": lambda x: [
        torch.cumsum(x, 1),
        x.softmax(1),
        F.log_softmax(x, dim=1),
        torch.logsumexp(x, 1),
        x.prod(1),
        torch.sort(x, dim=1)[0],
        x.topk(2, dim=1).values,
        torch.cumprod(x, dim=1),
    ],
}
REAL: dict[str, Callable[..., Any]] = {
    "extremes": lambda x: [
        x.max(),
        torch.min(x),
        x.amax(dim=(1, 2, 3)),
        torch.amin(x, (2, 3), keepdim=True),
        x.amax(1),
        torch.aminmax(x)[1],
    ],
    "extremes with places": lambda x: [x.max(1)[0], x.min(dim=1, keepdim=True).values],
    "two": lambda x: torch.max(x, x.flip(1)) + torch.min(x.sin(), x),
    "spread": lambda x: [
        x.var(),
        x.std((1, 2, 3)),
        torch.var(x, dim=1, keepdim=True),
        x.std(unbiased=False),
        torch.var(x, (2, 3), correction=3),
        torch.std_mean(x)[1],
        torch.var_mean(x, dim=(1, 2, 3), keepdim=True)[0],
    ],
}
PLAIN: dict[str, Callable[..., Any]] = {
    "truths": lambda x: [
        (x > 0).all(),
        torch.any(x > 1),
        (x > -9).all(dim=(1, 2, 3)),
        (x > 0).any(1),
        (x > 0).sum(),
        (x > 0).float().mean(),
        torch.count_nonzero(x > 0),
        x.argmax(1),
        (x > 0).max(),
        x.bool().amin((1, 2, 3)),
    ],
    "numbers": lambda x: [x.equal(x), torch.allclose(x, x + 1e-12), torch.allclose(x, x + 1)],
    "integers": lambda x: [
        (x * 10).long().sum(),
        (x * 10).int().max(),
        (x * 10).long().amin((1, 2, 3)),
        (x * 10).int().sum((2, 3), dtype=torch.float32),
        (x * 10).long().mean(dtype=torch.float64),
        (x * 10).long().prod(1),
    ],
    "count": lambda x: torch.linalg.vector_norm(x, ord=0, dim=(2, 3)),
    "float32": lambda x: (x > 0).to(torch.float32).sum(dtype=torch.float64),
}
VOLUMES: dict[str, Callable[..., Any]] = {
    "several": lambda x: x.sum() + x.amax() * x.norm() + x.var(),
    "numbers": PLAIN["numbers"],
}


def work(ctx: DistributedContext) -> None:
    cases = []
    for spatial in ((7, 5), (2, 3), (3, 4, 3)):
        x = torch.randn(2, 3, *spatial, dtype=torch.float64)
        n = len(spatial)
        for name, function in (VOLUMES if n == 3 else {**ALL, **REAL, **PLAIN}).items():
            for mesh in meshes(ctx.world_size, n):
                order = 0 if name in PLAIN else 2
                what = f"{name} {spatial}"
                cases.append(
                    (what, partial(compare, ctx, what, function, x, mesh=mesh, order=order))
                )
        z = torch.complex(x, x.flip(0) + 1)
        for name in ("sum", "mean", "norms", "products", "sum in the box"):
            if n == 2:
                for mesh in meshes(ctx.world_size, n):
                    what = f"complex {name} {spatial}"
                    cases.append((what, partial(compare, ctx, what, ALL[name], z, mesh=mesh)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_against_plain(pool: WorkerPool, world_size: int) -> None:
    pool.run(work, world_size=world_size, timeout=120)


def special_values(ctx: DistributedContext) -> list[torch.Tensor]:
    """NaN and infinity reach every rank; zero has a derivative; equal extremes share theirs."""
    x = torch.zeros(1, 2, 6, 5)
    x[0, 0, 4, 1] = float("nan")
    lost = ctx.shard(x)
    assert lost.max().isnan()
    assert lost.min().isnan()
    assert lost.sum().isnan()
    x[0, 0, 4, 1] = float("inf")
    endless = ctx.shard(x).requires_grad_()
    top = endless.max()
    assert torch.isposinf(top)
    top.backward()
    assert endless.grad is not None
    assert endless.grad.full_tensor()[0, 0, 4, 1] == 1
    assert endless.grad.sum() == 1
    zero = ctx.shard(torch.zeros(1, 2, 6, 5)).requires_grad_()
    (grad,) = torch.autograd.grad(zero.norm(), zero)
    assert bool((grad == 0).all())
    (grad,) = torch.autograd.grad(zero.amax(), zero)
    assert float(grad.full_tensor()[0, 0, 0, 0]) == pytest.approx(1 / 60)
    norm = ctx.shard(torch.ones(1, 2, 6, 5)).norm()
    assert type(norm) is torch.Tensor
    assert not isinstance(norm, ShardedTensor)
    return [norm, top.detach()]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_special_values(pool: WorkerPool, world_size: int) -> None:
    pool.run(special_values, world_size=world_size)


def scalars_that_need_gradients(ctx: DistributedContext) -> None:
    """A plain scalar, used on every rank, has the gradient of one loss, on every rank."""
    x = torch.randn(1, 2, 5, 3, dtype=torch.float64)
    w = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    sharded = ctx.shard(x)
    loss = ((sharded - w) ** 2).sum() * w
    loss.backward()
    expected = (-2 * (x - w.detach())).sum() * w.detach() + ((x - w.detach()) ** 2).sum()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_scalars_that_need_gradients(pool: WorkerPool, world_size: int) -> None:
    pool.run(scalars_that_need_gradients, world_size=world_size)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one axis": (lambda x: x.sum(-1), "over all spatial axes"),
    "one axis norm": (lambda x: torch.linalg.vector_norm(x, dim=2), "over all spatial axes"),
    "places": (lambda x: x.flatten(1).max(1), "positions in the whole image"),
    "argmax": (lambda x: x.argmax(), "which are cut"),
    "matrix": (lambda x: torch.linalg.norm(x, ord=2, dim=(2, 3)), "matrix norm"),
    "folded matrix": (lambda x: torch.linalg.norm(x.flatten(1), ord=2), "matrix norm"),
    "nuclear": (lambda x: torch.norm(x, p="nuc"), "nuc"),
    "dot of images": (lambda x: torch.vdot(x, x), "flatten them first"),
    "dot of batches": (lambda x: torch.dot(x.flatten(1), x.flatten(1)), "for vectors"),
    "softmax": (lambda x: x.softmax(-1), "are cut"),
    "median": (lambda x: x.median(), "which are cut"),
    "cumsum": (lambda x: x.cumsum(2), "are cut"),
}


def refused(ctx: DistributedContext, case: str) -> None:
    REFUSED[case][0](ctx.shard(torch.randn(1, 2, 6, 5)))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(pool: WorkerPool, world_size: int, case: str) -> None:
    outcomes = pool.run(refused, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, UnsupportedOperation, REFUSED[case][1])
