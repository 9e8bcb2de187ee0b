"""Joining and splitting along axes that are not cut."""

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

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "cat": lambda x, y: [torch.cat([x, y]), torch.cat((x, y * 2), dim=1), torch.concat([x], 1)],
    "cat folded": lambda x, y: torch.cat([x.flatten(1), y.flatten(1)], 0),
    "cat of crops": lambda x, y: torch.cat([x[:, :, 1:], y[:, :, :-1]], 1) ** 2,
    "cat trailing": lambda x, y: torch.cat([x[..., None], y[..., None]], -1).sum(-1),
    "stack": lambda x, y: [torch.stack([x, y]), torch.stack([x, y], 2), torch.stack([x, y], -1)],
    "split": lambda x, y: [*x.split(2, 1), *torch.split(y, [1, 2], dim=1)],
    "chunk": lambda x, y: [*x.chunk(2, dim=1), *torch.chunk(y, 2), *x.tensor_split(2, 1)],
    "spread": lambda x, y: [*torch.stack([x, y], -1).unbind(-1)],
}


def work(ctx: DistributedContext) -> None:
    x, y = torch.randn(2, 2, 3, 7, 5, dtype=torch.float64)
    run_cases(
        ctx,
        [
            (name, partial(compare, ctx, name, function, x, y, mesh=mesh))
            for name, function in CASES.items()
            for mesh in meshes(ctx.world_size, 2)
        ],
    )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_against_plain(pool: WorkerPool, world_size: int) -> None:
    pool.run(work, world_size=world_size)


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "cat in space": (UnsupportedOperation, "which is cut", lambda x, p: torch.cat([x, x], 2)),
    "stack within": (UnsupportedOperation, "which is cut", lambda x, p: torch.stack([x, x], 3)),
    "split in space": (UnsupportedOperation, "which is cut", lambda x, p: x.split(2, dim=-1)),
    "with a plain one": (LayoutError, "a replicated one", lambda x, p: torch.cat([x, p], 1)),
    "other sizes": (LayoutError, "images of", lambda x, p: torch.cat([x, x[:, :, 1:]], 1)),
}


def refused(ctx: DistributedContext, case: str) -> None:
    x = torch.randn(1, 2, 6, 5)
    REFUSED[case][2](ctx.shard(x), x)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(pool: WorkerPool, world_size: int, case: str) -> None:
    outcomes = pool.run(refused, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, REFUSED[case][0], REFUSED[case][1])
