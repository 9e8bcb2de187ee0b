"""Indices of axes that are not cut, and crops, read and written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from shardinv import DistributedContext
from shardinv.tensor import LayoutError, UnsupportedOperation
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.tensor.compare import compare, meshes, run_cases

CASES: dict[str, Callable[[Any], Any]] = {
    "lead": lambda x: [x[0], x[:, 1], x[1, 2], x[:, 1:], x[..., :], x[:, ::2], x[-1:]],
    "lists": lambda x: [x[:, [2, 0]], x[[1]], x[[0, 1], [2, 1]], x[:, torch.tensor([0, 0, 1])]],
    "tables": lambda x: x[:, torch.tensor([[0, 1], [2, 2]])],
    "booleans": lambda x: [x[:, torch.tensor([True, False, True])], x[torch.tensor([True, True])]],
    "number tensors": lambda x: x[torch.tensor(1), torch.tensor(2)],
    "new axes": lambda x: [x[None], x[:, None, 1], x[..., None], x[0, ..., None, None]],
    "crops": lambda x: [x[:, :, 1:], x[..., 2:-1], x[:, :, 3:4, 1:3], x[0, :, :-2], x[:, :, 5:2]],
    "differences": lambda x: (x[:, :, 1:] - x[:, :, :-1]) ** 2,
    "product of crops": lambda x: x[:, :, 1:, 1:] * x[:, :, :-1, :-1] + x[:, :, 1:, :-1],
    "crop of crop": lambda x: x[:, :, 1:][:, :, 2:-1].sin(),
    "crop and whole": lambda x: x[..., 1:].sum() * x,
    "narrow": lambda x: [x.narrow(2, 1, 4), x.narrow(1, 1, 2), torch.narrow(x, 3, -3, 2)],
    "select": lambda x: [x.select(0, 1), torch.select(x, 1, -1), *x.unbind(1)],
    "iterated": lambda x: [image * 2 for image in x],
    "index select": lambda x: x.index_select(1, torch.tensor([2, 2, 0])),
    "trailing": lambda x: [
        x.movedim(1, -1)[..., 0],
        x.movedim(1, -1)[:, 1:, :, 1],
        x.movedim(1, -1)[..., [0, 2]],
        x.movedim(1, -1)[..., None, 1:],
        x.movedim(1, -1)[..., torch.tensor([[0, 1], [1, 2]])],
    ],
    "folded": lambda x: [x.flatten(1)[0], x.flatten(2)[:, 1], x.flatten(1)[1:]],
}


def written(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Writes of every kind."""
    z = x.clone()
    z[0] = y[1]
    z[:, 1] = 0.5
    z[:, :, 1:] = y[:, :, :-1]
    z[:, :, 2:4, 1:] += y[:, :, 3:5, :-1]
    z[..., -1:] = 3
    z[:, [0, 2]] *= 2
    z[(z > 1) & (y < 0)] = -1
    z[:, :, :2] = torch.tensor(2.0)
    z[:, :, 3:] = torch.arange(3.0, dtype=x.dtype).reshape(3, 1, 1)
    g = torch.stack([x, y], -1)
    g[:, :, 1:, :, 0] = x[:, :, 1:] - x[:, :, :-1]
    g[..., :-1, 1] = y[..., 1:]
    return [z, g]


def work(ctx: DistributedContext) -> None:
    x, y = torch.randn(2, 2, 3, 7, 5, dtype=torch.float64)
    cases: list[tuple[str, Callable[[], None]]] = []
    for mesh in meshes(ctx.world_size, 2):
        for name, function in CASES.items():
            cases.append((name, partial(compare, ctx, name, function, x, mesh=mesh)))
        cases.append(("written", partial(compare, ctx, "written", written, x, y, mesh=mesh)))
    volume = torch.randn(1, 2, 3, 5, 4, dtype=torch.float64)
    for mesh in meshes(ctx.world_size, 3):

        def crops(v: torch.Tensor) -> Any:
            return [v[:, :, 1:] * v[:, :, :-1], v[..., 1:, 2:] ** 2]

        cases.append(("volume", partial(compare, ctx, "volume", crops, volume, mesh=mesh)))
    run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_against_plain(pool: WorkerPool, world_size: int) -> None:
    pool.run(work, world_size=world_size)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "pixel": lambda x: x[0, 0, 3, 2],
    "row": lambda x: x[:, :, 1],
    "steps": lambda x: x[:, :, ::2],
    "list in space": lambda x: x[..., [0, 1]],
    "axis within": lambda x: x[:, :, :, None],
    "apart": lambda x: x.movedim(1, -1)[[0], :, :, [1]],
    "select": lambda x: x.select(2, 0),
    "select rows": lambda x: x.index_select(2, torch.tensor([0])),
    "folded": lambda x: x.flatten(1)[:, 2:],
    "truth": lambda x: x[True],
}


def refused(ctx: DistributedContext, case: str) -> None:
    REFUSED[case](ctx.shard(torch.randn(2, 2, 6, 5)))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(pool: WorkerPool, world_size: int, case: str) -> None:
    outcomes = pool.run(refused, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, UnsupportedOperation, "cut|mask|sharded")


WRITES: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "into plain": (LayoutError, r"distribute\(prior, ctx\)", lambda x, p: p.__setitem__(0, x[0])),
    "plain whole": (LayoutError, "varies in space", lambda x, p: x.__setitem__(0, p[0])),
    "other size": (
        LayoutError,
        "written into a region",
        lambda x, p: x.__setitem__((slice(None), slice(None), slice(1, None)), x),
    ),
    "mask of another shape": (IndexError, "mask of shape", lambda x, p: x.__setitem__(x[0] > 0, 1)),
    "plain by sharded": (LayoutError, "cannot be indexed", lambda x, p: p[x > 0]),
    "too many": (IndexError, "too many indices", lambda x, p: x[0, 0, :, :, 0]),
    "narrow": (RuntimeError, "exceeds dimension size", lambda x, p: x.narrow(2, 4, 3)),
}


def badly_written(ctx: DistributedContext, case: str) -> None:
    x = torch.randn(2, 2, 6, 5)
    WRITES[case][2](ctx.shard(x), x)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", WRITES)
def test_bad_writes(pool: WorkerPool, world_size: int, case: str) -> None:
    outcomes = pool.run(badly_written, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, WRITES[case][0], WRITES[case][1])
