"""Views, permutations and repetitions of axes that are not cut, against plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from shardinv import DistributedContext
from shardinv.tensor import UnsupportedOperation
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.tensor.compare import compare, meshes, run_cases

CASES: dict[str, Callable[[Any], Any]] = {
    "folded and back": lambda x: (x.view(2, -1) * 2).reshape(2, 3, 7, 5) + x,
    "folded all": lambda x: [x.flatten() ** 2, x.ravel().sin(), x.reshape(-1).view(x.shape)],
    "folded twice": lambda x: x.flatten(2).flatten(1) * x.reshape(2, 105),
    "one channel": lambda x: x[:, :1].reshape(1, -1) + x[:, 0].reshape(1, -1),
    "lead axes": lambda x: x.view(6, 7, 5).view(1, 3, 2, 7, 5) ** 2,
    "folded lead": lambda x: [x.reshape(3, 2, 35), x.reshape(6, 35).view(2, 3, -1)],
    "unflatten": lambda x: x.unflatten(1, (3, 1)) + x.flatten(2).unflatten(2, (7, 5)).unsqueeze(2),
    "view as": lambda x: x.flatten(1).view_as(x) + x.reshape_as(x),
    "unsqueeze": lambda x: [x.unsqueeze(0), x.unsqueeze(2), x.unsqueeze(-1), x[None, ..., None]],
    "squeeze": lambda x: [x[:, :1].squeeze(1), x.unsqueeze(-1).squeeze(-1), x[:1].squeeze()],
    "expand": lambda x: [x[:, :1].expand(2, 4, 7, 5), x[:1].expand(5, -1, -1, -1, -1)],
    "expand as": lambda x: torch.ones(1, dtype=x.dtype).expand_as(torch.ones(2, 3)) * x.sum(),
    "repeat": lambda x: [x.repeat(2, 1, 1, 1), x.repeat(2, 1, 3, 1, 1), x.tile(2, 1, 1, 1)],
    "permute": lambda x: [x.permute(1, 0, 2, 3), torch.permute(x, (0, 2, 3, 1)) ** 2],
    "transpose": lambda x: [x.transpose(0, 1), x.transpose(dim0=1, dim1=0), x.swapaxes(0, 1)],
    "movedim": lambda x: [x.movedim(1, -1).sum(-1), torch.movedim(x, 1, -1).movedim(-1, 1)],
    "trailing": lambda x: [
        x.movedim(1, -1) * torch.tensor([1.0, 2, 3], dtype=x.dtype),
        x.movedim(1, -1).norm(dim=-1, keepdim=True) + x.movedim(1, -1),
        x.movedim(1, -1).mean((1, 2)),
    ],
    "complex": lambda x: torch.view_as_complex(torch.stack([x, x.sin()], -1)),
    "real": lambda x: torch.view_as_real(x * (1 + 2j)),
    "broadcast": lambda x: torch.broadcast_to(x[:, :1], (2, 3, 7, 5)),
}


def work(ctx: DistributedContext) -> None:
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    cases = [
        (name, partial(compare, ctx, name, function, x, mesh=mesh))
        for name, function in CASES.items()
        for mesh in meshes(ctx.world_size, 2)
    ]
    volume = torch.randn(2, 2, 3, 4, 3, dtype=torch.float64)
    for mesh in meshes(ctx.world_size, 3):
        for name, function in {
            "volume folded": lambda v: v.flatten(1) * v.reshape(2, 72),
            "volume permuted": lambda v: v.permute(0, 2, 3, 4, 1) ** 2,
        }.items():
            cases.append((name, partial(compare, ctx, name, function, volume, mesh=mesh)))
    run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_against_plain(pool: WorkerPool, world_size: int) -> None:
    pool.run(work, world_size=world_size)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "rows folded": lambda x: x.reshape(1, 12, 5),
    "space exchanged": lambda x: x.transpose(2, 3),
    "space split": lambda x: x.permute(2, 0, 1, 3),
    "space repeated": lambda x: x.repeat(1, 1, 2, 1),
    "axis within": lambda x: x.unsqueeze(3),
    "folded in part": lambda x: x.flatten(1).view(1, 4, -1) if x.shape[3] == 5 else x,
    "space unfolded": lambda x: x.unflatten(2, (2, 3)),
    "space merged": lambda x: x.flatten(1, 2),
}


def refused(ctx: DistributedContext, case: str) -> None:
    REFUSED[case](ctx.shard(torch.randn(1, 2, 6, 5)))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(pool: WorkerPool, world_size: int, case: str) -> None:
    outcomes = pool.run(refused, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, UnsupportedOperation, "sharded tensor")


def wrong_size(ctx: DistributedContext) -> None:
    ctx.shard(torch.randn(1, 2, 6, 5)).view(7, -1)


def test_a_view_of_another_size_is_an_error(pool: WorkerPool) -> None:
    outcomes = pool.run(wrong_size, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, RuntimeError, "invalid")
