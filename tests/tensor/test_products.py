"""Products of flattened images, values picked by a mask, tensors made of a sharded one's size."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shardinv import DistributedContext
from shardinv.tensor import (
    LayoutError,
    ShardedTensor,
    UnsupportedOperation,
    sharded_factories,
)
from tests.harness import WorkerPool, assert_close, assert_every_rank_raised
from tests.tensor.algorithms import LAYOUTS, SHAPE, Case, compare, images

SMALL = torch.arange(8.0, dtype=torch.float64).reshape(2, 1, 4) / 8


def history(x: torch.Tensor) -> torch.Tensor:
    """Four flattened images for each of the batch, ``(B, 4, pixels)``."""
    return torch.stack([x, x.square(), 1 - x, x * 0.5], 1).reshape(x.shape[0], 4, -1)


def product_cases() -> dict[str, Case]:
    def with_slope(product: Callable[..., torch.Tensor]) -> Case:
        def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
            leaf, small = x.clone().requires_grad_(), SMALL.clone().requires_grad_()
            result = product(leaf, mask, small)
            loss = result.pow(3).sum()
            first = torch.autograd.grad(loss, [leaf, small], create_graph=True, allow_unused=True)
            second = torch.autograd.grad(first[0].pow(2).sum(), leaf)
            return [result.detach(), *(g.detach() for g in first if g is not None), *second]

        return run

    def gram(multiply: Callable[..., torch.Tensor]) -> Case:
        return with_slope(lambda x, mask, small: multiply(history(x), history(x)))

    return {
        "bmm, transpose": gram(lambda a, b: torch.bmm(a, b.transpose(1, 2))),
        "matmul, mT": gram(lambda a, b: torch.matmul(a, b.mT)),
        "matmul, permute": gram(lambda a, b: a @ b.permute(0, 2, 1)),
        "matmul, adjoint": gram(lambda a, b: a @ b.adjoint()),
        "mm": gram(lambda a, b: torch.mm(a[0], b[1].transpose(0, 1))),
        "mv": gram(lambda a, b: torch.mv(a[0], b[1, 2])),
        "a vector by a vector": gram(lambda a, b: a[0, 1] @ b[0, 2]),
        "transposed twice": gram(lambda a, b: a.mT.mT - b.transpose(-1, -2).transpose(1, 2) ** 2),
        "small by rows": with_slope(lambda x, mask, small: small @ history(x)),
        "small by rows, rmatmul": with_slope(
            lambda x, mask, small: history(x).__rmatmul__(small)
        ),
        "rows by columns by small": with_slope(
            lambda x, mask, small: history(x) @ (history(x).mT @ small.mT)
        ),
        "columns by a vector": with_slope(lambda x, mask, small: history(x).mT @ small[0, 0]),
        "einsum, batch": with_slope(
            lambda x, mask, small: torch.einsum("bchw,bchw->b", x, x.exp())
        ),
        "einsum, implicit": with_slope(lambda x, mask, small: torch.einsum("bchw,dchw", x, x)),
        "einsum, channels": with_slope(
            lambda x, mask, small: torch.einsum("oc,bchw->bohw", small[0, :, :3], x)
        ),
        "einsum, to the back": with_slope(
            lambda x, mask, small: torch.einsum("bchw,oc->hwbo", x, small[1, :, 1:])
        ),
        "einsum, both": with_slope(
            lambda x, mask, small: torch.einsum("bchw,kc,bchw->bk", x, small[:, 0, :3], x)
        ),
        "einsum, flattened": with_slope(
            lambda x, mask, small: torch.einsum("bmn,bkn->bmk", history(x), history(x))
        ),
        "cosine": with_slope(
            lambda x, mask, small: F.cosine_similarity(x.flatten(1), x.exp().flatten(1))
        ),
        "cosine of channels": with_slope(
            lambda x, mask, small: F.cosine_similarity(x, x.exp(), dim=1)
        ),
    }  # fmt: skip


def selection_cases() -> dict[str, Case]:
    def write(x: torch.Tensor, mask: torch.Tensor) -> Any:
        bright, other = x > 0.6, x < 0.3
        y = x.clone()
        y[bright] = (y[bright] * 2 - x[bright]).sqrt()
        y[other] += x[other] ** 2
        y[x > 0.9] = 7.0
        return y

    def slope(x: torch.Tensor, mask: torch.Tensor) -> Any:
        leaf = x.clone().requires_grad_()
        picked = leaf[(mask > 0).expand(x.shape)]
        loss = picked.square().mean() + picked.norm() + (leaf[x > 2].sum())
        return [loss.detach(), torch.autograd.grad(loss, leaf)[0]]

    return {
        "write": write,
        "slope": slope,
        "reduce": lambda x, mask: [
            x[x > 0.5].mean(), x[x > 0.5].max(), x.masked_select(x > 0.5).std(),
            x[x > 2].sum(), torch.tensor(len(x[x > 0.5])),
        ],
        "two equal masks": lambda x, mask: (x[x > 0.5] * x.exp()[x > 0.5]).sum(),
    }  # fmt: skip


def factory_cases() -> dict[str, Case]:
    def made(make: Callable[..., torch.Tensor]) -> Case:
        def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
            with sharded_factories():
                result = make(x)
            assert isinstance(result, ShardedTensor) == isinstance(x, ShardedTensor)
            return result

        return run

    half = torch.tensor([0.5], dtype=torch.float64)
    double = {"dtype": torch.float64}
    return {
        "zeros": made(lambda x: torch.zeros(x.shape, **double) + x),
        "ones, numbers": made(lambda x: torch.ones(*x.shape, **double)),
        "ones, other channels": made(lambda x: torch.ones((5, 1, *x.shape[2:]), **double)),
        "ones, size": made(lambda x: torch.ones(size=(1, x.size(1), x.size(2), x.size(-1)))),
        "trailing": made(lambda x: torch.ones(x.shape[0], *x.shape[-2:], 2)),
        "full": made(lambda x: torch.full(x.shape, 3.0)),
        "full by name": made(lambda x: torch.full(size=x.shape, fill_value=3.0)),
        "new_zeros": made(lambda x: half.new_zeros(x.shape)),
        "new_full": made(lambda x: half.new_full((4, *x.shape[2:]), 2.0)),
        "new_ones, sharded": made(lambda x: x.new_ones(7, *x.shape[2:])),
        "flattened": made(lambda x: torch.zeros(2, 4, x[0].numel(), **double)),
        "a row of it": made(lambda x: torch.ones(x.flatten(1).shape[-1], **double)),
        "randn": made(lambda x: torch.randn(x.shape, **double)),
        "rand": made(lambda x: torch.rand(*x.shape[1:])),
        "expand": made(lambda x: half.view(1, 1, 1, 1).expand(x.shape) * x),
        "broadcast_to": made(lambda x: torch.broadcast_to(half, x.shape) * x),
    }


def slope_of_a_noise_map(x: torch.Tensor, mask: torch.Tensor) -> Any:
    level = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)
    with sharded_factories():
        noise_map = level.view(2, 1, 1, 1).expand(2, 1, *x.shape[2:])
    loss = (torch.cat([x, noise_map], 1) ** 3).sum()
    return torch.autograd.grad(loss, level)[0]


def run_rules(ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]) -> None:
    compare(ctx, product_cases() | selection_cases() | factory_cases(), mesh, shape, numbers=2048)
    compare(ctx, {"noise map": slope_of_a_noise_map}, mesh, shape)


@pytest.mark.parametrize(("world_size", "mesh", "shape"), LAYOUTS)
def test_rules(pool: WorkerPool, world_size: int, mesh: Any, shape: Any) -> None:
    pool.run(run_rules, mesh, shape, world_size=world_size)


def what_stays_plain(ctx: DistributedContext) -> None:
    x = ctx.ones(SHAPE)
    with sharded_factories():
        assert isinstance(x.shape, torch.Size)
        assert x.shape == torch.ones(SHAPE).shape
        plain = [
            torch.zeros(13, 9),  # a number that happens to match
            torch.zeros(x.shape[2] // 1, x.shape[3]),  # computed with
            torch.zeros(x.shape[3], x.shape[2]),  # another order
            torch.zeros(x.shape[2]),
            torch.zeros(x.shape[0], x.shape[1]),
            torch.zeros(torch.ones(SHAPE).shape),
            torch.arange(x.shape[2]),
        ]
        told = pickle.loads(pickle.dumps(tuple(x.shape)))
    assert told == SHAPE
    assert all(type(n) is int for n in told)
    assert not any(isinstance(t, ShardedTensor) for t in plain)
    assert not isinstance(torch.zeros(x.shape), ShardedTensor), "outside"


def test_other_sizes_stay_plain() -> None:
    what_stays_plain(DistributedContext())


def drawn(ctx: DistributedContext) -> torch.Tensor:
    x = ctx.ones(SHAPE)
    generator = torch.Generator().manual_seed(5)
    with sharded_factories():
        return torch.randn(x.shape, generator=generator).full_tensor()


def test_draws_do_not_depend_on_the_ranks(pool: WorkerPool) -> None:
    results = [r for size in (1, 2, 3) for r in pool.run(drawn, world_size=size)]
    for result in results[1:]:
        assert_close(result, results[0], 0.0)


def refuse(ctx: DistributedContext, case: str) -> None:
    x, _ = images(SHAPE)
    sharded = ctx.shard(x)
    rows = history(sharded)
    cases: dict[str, Callable[[], Any]] = {
        "image": lambda: sharded @ sharded.new_ones(9, 9),
        "outer": lambda: rows.mT @ rows,
        "replicated": lambda: rows @ torch.ones(2, rows.shape[-1], 4, dtype=torch.float64),
        "replicated first": lambda: torch.ones(2, 4, rows.shape[-1], dtype=torch.float64) @ rows.mT,
        "columns": lambda: rows.mT + 1,
        "columns and rows": lambda: rows.mT.sum(),
        "einsum, a spatial axis": lambda: torch.einsum("bchw->bch", sharded),
        "einsum, replicated": lambda: torch.einsum("bchw,hw->bc", sharded, x[0, 0]),
        "einsum, dots": lambda: torch.einsum("...hw->...", sharded),
        "gather": lambda: sharded[sharded > 0.5].full_tensor(),
        "other mask": lambda: sharded[sharded > 0.5] + sharded[sharded > 0.6],
        "mask's shape": lambda: sharded[sharded[:, :1] > 0.5],
        "integers": lambda: sharded[sharded.long()],
    }
    cases[case]()


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("image", UnsupportedOperation, "flatten them into one first"),
        ("outer", UnsupportedOperation, "a row and a column for each pixel"),
        ("replicated", LayoutError, "with transposed flattened images"),
        ("replicated first", LayoutError, "shard and flatten it too"),
        ("columns", UnsupportedOperation, "Transpose them back first"),
        ("columns and rows", UnsupportedOperation, "Transpose them back first"),
        ("einsum, a spatial axis", UnsupportedOperation, "all spatial axes, in their order"),
        ("einsum, replicated", UnsupportedOperation, "varies in space"),
        ("einsum, dots", UnsupportedOperation, "letters alone"),
        ("gather", UnsupportedOperation, "no place in the image"),
        ("other mask", LayoutError, "images of .* and .* px"),
        ("mask's shape", IndexError, "does not match"),
        ("integers", UnsupportedOperation, "a mask of bool"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, kind: Any, message: str) -> None:
    assert_every_rank_raised(pool.run(refuse, case, expect_error=True), kind, message)
