"""Autograd through sharded tensors: functions, hooks, optimizers; a lost gradient is an error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from shardinv import DistributedContext
from shardinv.tensor import LayoutError, ShardedTensor
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised


def functions(ctx: DistributedContext) -> None:
    """grad, backward, retain_grad, hooks, detach, no_grad: as of a plain tensor."""
    for spatial in ((6, 5), (2, 1)):
        x = torch.randn(1, 2, *spatial, dtype=torch.float64)
        seed = torch.randn_like(x)
        plain, sharded = x.clone().requires_grad_(), ctx.shard(x).requires_grad_()
        assert sharded.requires_grad
        assert sharded.is_leaf
        assert sharded.grad is None
        (wanted,) = torch.autograd.grad(plain.sin(), plain, seed)
        (found,) = torch.autograd.grad(sharded.sin(), sharded, ctx.shard(seed))
        torch.testing.assert_close(found.full_tensor(), wanted)
        (found,) = torch.autograd.grad(
            outputs=[sharded.sin(), (sharded**2).sum()],
            inputs=[sharded],
            grad_outputs=[ctx.shard(seed), None],
        )
        torch.testing.assert_close(found.full_tensor(), wanted + 2 * x)
        seen: list[Any] = []
        middle = sharded * 2
        middle.retain_grad()
        middle.register_hook(seen.append)
        middle.register_hook(lambda grad: grad * 3)
        (middle**2).sum().backward()
        assert isinstance(seen[0], ShardedTensor)
        assert sharded.grad is not None
        torch.testing.assert_close(sharded.grad.full_tensor(), 24 * x)
        torch.testing.assert_close(middle.grad.full_tensor(), 12 * x)
        sharded.grad = None
        sharded.cos().backward(ctx.shard(seed))
        torch.testing.assert_close(sharded.grad.full_tensor(), -x.sin() * seed)
        sharded.grad = torch.zeros_like(sharded)
        torch.autograd.backward([sharded.sum()])
        assert bool((sharded.grad == 1).all())
        assert not sharded.detach().requires_grad
        with torch.no_grad():
            assert not (sharded * 2).requires_grad
        sharded.requires_grad = False
        assert not (sharded * 2).requires_grad
        unused = ctx.shard(x).requires_grad_()
        grads = torch.autograd.grad(
            (ctx.shard(x).requires_grad_() ** 2).sum(), [unused], allow_unused=True
        )
        assert grads == (None,)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_functions(pool: WorkerPool, world_size: int) -> None:
    pool.run(functions, world_size=world_size)


def optimizers(ctx: DistributedContext) -> None:
    """A sharded image as the parameter of an optimizer follows the plain one."""
    x = torch.randn(1, 2, 6, 5, dtype=torch.float64)
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    ):
        plain = torch.nn.Parameter(x.clone())
        sharded = torch.nn.Parameter(ctx.shard(x))
        assert isinstance(sharded, ShardedTensor)
        for parameter in (plain, sharded):
            optimizer = make([parameter])
            for _ in range(3):
                optimizer.zero_grad()
                (parameter**4).mean().backward()
                optimizer.step()
        torch.testing.assert_close(sharded.full_tensor(), plain.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("world_size", [1, 3])
def test_optimizers(pool: WorkerPool, world_size: int) -> None:
    pool.run(optimizers, world_size=world_size)


def copies(ctx: DistributedContext) -> None:
    """Deep copies of leaves, alone and within objects; others are refused, as torch does."""
    x = ctx.shard(torch.randn(1, 2, 6, 5)).requires_grad_()
    twin = copy.deepcopy({"x": x, "again": x})
    assert twin["x"] is twin["again"]
    assert twin["x"].requires_grad
    with torch.no_grad():
        twin["x"].zero_()
    assert float(x.detach().abs().sum()) > 0
    assert copy.copy(x).sharding == x.sharding
    with pytest.raises(RuntimeError, match="deep-copied"):
        copy.deepcopy(x * 2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        torch.save(x, "/dev/null")


@pytest.mark.parametrize("world_size", [1, 3])
def test_copies(pool: WorkerPool, world_size: int) -> None:
    pool.run(copies, world_size=world_size)


class Doubled(torch.autograd.Function):
    """A Function of a user's: its backward is for whole tensors."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * 2 + weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2, grads[0].sum()


class Energy(torch.autograd.Function):
    """One that gives a plain number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


def custom(ctx: DistributedContext, case: str) -> Any:
    weight = torch.tensor(1.0)
    x = ctx.shard(torch.randn(1, 2, 6, 5))
    if case == "without gradients":
        return float(Doubled.apply(x, weight).sum())
    if case == "image":
        Doubled.apply(x.requires_grad_(), weight).sum().backward()
    elif case == "written":
        y = torch.zeros_like(x)
        y[:, :1] = x.requires_grad_()[:, 1:]
        Doubled.apply(y, weight).sum().backward()
    elif case == "weight":
        Doubled.apply(x, weight.requires_grad_()).sum().backward()
    elif case == "number":
        Energy.apply(x.requires_grad_()).backward()
    elif case == "number by grad":
        torch.autograd.grad(Energy.apply(x.requires_grad_()), x)
    elif case == "checkpoint":
        torch.utils.checkpoint.checkpoint(
            torch.sin, x.requires_grad_(), use_reentrant=True
        ).sum().backward()
    return None


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", ["image", "written", "weight", "number", "checkpoint"])
def test_a_gradient_that_a_custom_function_would_lose_is_an_error(
    pool: WorkerPool, world_size: int, case: str
) -> None:
    outcomes = pool.run(custom, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, RuntimeError, "custom autograd.Function|below its rules")


def test_the_same_by_grad(pool: WorkerPool) -> None:
    outcomes = pool.run(custom, "number by grad", world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, RuntimeError)


def test_a_custom_function_without_gradients_runs(pool: WorkerPool) -> None:
    results = pool.run(custom, "without gradients", world_size=2)
    assert results[0] == results[1]


def recomputed(ctx: DistributedContext) -> None:
    """Checkpoints that are not re-entrant keep the local parts' graph."""
    x = torch.randn(1, 2, 6, 5, dtype=torch.float64)
    sharded = ctx.shard(x).requires_grad_()
    torch.utils.checkpoint.checkpoint(
        lambda x: (x.sin() * x.norm()).sum(), sharded, use_reentrant=False
    ).backward()
    plain = x.clone().requires_grad_()
    (plain.sin() * plain.norm()).sum().backward()
    assert sharded.grad is not None
    torch.testing.assert_close(sharded.grad.full_tensor(), plain.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("world_size", [1, 3])
def test_recomputed(pool: WorkerPool, world_size: int) -> None:
    pool.run(recomputed, world_size=world_size)


BAD: dict[str, tuple[type[Exception], str]] = {
    "no seed": (RuntimeError, "needs a sharded cotangent"),
    "plain seed": (LayoutError, "must lie as it does"),
    "sharded seed": (LayoutError, "replicated output"),
    "plain gradient": (LayoutError, "cannot be the gradient"),
    "cropped gradient": (LayoutError, "must lie as it does"),
    "plain data": (LayoutError, "cannot be the gradient"),
}


def bad(ctx: DistributedContext, case: str) -> None:
    x = torch.randn(1, 2, 6, 5)
    sharded = ctx.shard(x).requires_grad_()
    if case == "no seed":
        sharded.sin().backward()
    elif case == "plain seed":
        torch.autograd.grad(sharded.sin(), sharded, x)
    elif case == "sharded seed":
        torch.autograd.grad(sharded.sum(), sharded, sharded.detach())
    elif case == "plain gradient":
        sharded.grad = x
    elif case == "cropped gradient":
        sharded.grad = sharded.detach()[:, :, 1:]
    elif case == "plain data":
        sharded.data = x


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", BAD)
def test_bad_seeds(pool: WorkerPool, world_size: int, case: str) -> None:
    outcomes = pool.run(bad, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, *BAD[case])
