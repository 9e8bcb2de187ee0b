"""What is refused, by name on every rank: unknown functions, values, layouts that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shardinv import DistributedContext
from shardinv.tensor import LayoutError, ShardedTensor, UnsupportedOperation, realign
from tests.harness import WorkerPool, assert_every_rank_raised

UNKNOWN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "fft": ("torch.fft.fft_fft2|fft2", lambda x: torch.fft.fft2(x)),
    "svd": ("svd", lambda x: torch.linalg.svd(x)),
    "unfold": ("unfold", lambda x: torch.nn.functional.unfold(x, 3)),
    "grid": ("rot90", lambda x: torch.rot90(x, 1, (2, 3))),
    "flip": ("flip", lambda x: x.flip(-1)),
    "transpose": ("transpose|sharded", lambda x: x.mT),
    "histogram": ("histc", lambda x: torch.histc(x)),
    "unique": ("unique", lambda x: torch.unique(x)),
    "item": ("item", lambda x: x.item()),
    "numpy": ("numpy", lambda x: x.numpy()),
    "array": ("__array__|numpy", lambda x: __import__("numpy").asarray(x)),
    "float": ("__float__", lambda x: float(x)),
    "truth": ("__bool__", lambda x: bool(x > 0)),
    "list": ("tolist", lambda x: x.tolist()),
    "contains": ("__contains__", lambda x: 3.0 in x),
    "pointer": ("data_ptr", lambda x: x.data_ptr()),
    "resized": (
        "bicubic",
        lambda x: torch.nn.functional.interpolate(x, (3, 3), mode="bicubic"),
    ),
    "roll": ("roll", lambda x: torch.roll(x, 3)),
    "sharded kernel": ("conv3d|conv2d", lambda x: torch.conv3d(x, torch.ones(1, 2, 1, 1, 1))),
}


def unknown(ctx: DistributedContext, case: str) -> None:
    UNKNOWN[case][1](ctx.shard(torch.randn(1, 2, 6, 5)))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown(pool: WorkerPool, world_size: int, case: str) -> None:
    outcomes = pool.run(unknown, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, UnsupportedOperation, UNKNOWN[case][0])


def mixed(ctx: DistributedContext, case: str) -> None:
    x = torch.randn(1, 2, 8, 8)
    a, b = ctx.shard(x, (2, 1)), ctx.shard(x, (1, 2))
    if case == "meshes":
        a + b
    elif case == "align":
        ctx.shard(torch.zeros(1, 1, 9, 9), (2, 1)) * ctx.shard(
            torch.zeros(1, 1, 9, 9), (2, 1), align=8
        )
    elif case == "cat":
        torch.cat([a, b], 1)
    elif case == "where":
        torch.where(a > 0, b, 0.0)
    elif case == "in place":
        a += b
    elif case == "dot":
        torch.dot(a.flatten(), b.flatten())
    elif case == "sizes":
        a + a[:, :, 1:]
    elif case == "shard again":
        ctx.shard(a, (1, 2))
    elif case == "kernel":
        torch.conv2d(torch.randn(1, 8, 9, 9), ctx.shard(torch.randn(1, 8, 3, 3), (2, 1)))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("meshes", r"sharded differently: .*mesh of 2 × 1 .*mesh of 1 × 2"),
        ("align", r"\[0:5, 0:9\].*\[0:8, 0:9\]"),
        ("cat", "mesh of 2 × 1 .*mesh of 1 × 2"),
        ("where", "mesh of 2 × 1 .*mesh of 1 × 2"),
        ("in place", "mesh of 2 × 1 .*mesh of 1 × 2"),
        ("dot", "mesh of 2 × 1 .*mesh of 1 × 2"),
        ("sizes", r"\(8, 8\) and \(7, 8\) px"),
        ("shard again", "mesh of 2 × 1 .*mesh of 1 × 2.*realign"),
        ("kernel", "replicated tensor"),
    ],
)
def test_mixed_layouts_name_both(pool: WorkerPool, case: str, message: str) -> None:
    outcomes = pool.run(mixed, case, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, LayoutError, message)


def two_groups(ctx: DistributedContext) -> None:
    """A shard of another context's, with the same boxes."""
    with DistributedContext(seed=0) as other:
        ctx.shard(torch.zeros(1, 1, 4, 4)) + other.shard(torch.zeros(1, 1, 4, 4))


def test_two_groups(pool: WorkerPool) -> None:
    outcomes = pool.run(two_groups, world_size=1, expect_error=True)
    assert_every_rank_raised(outcomes, LayoutError, "two groups of ranks")


def texts(ctx: DistributedContext) -> str:
    """What is printed needs no message, and says who holds what."""
    x = ctx.shard(torch.zeros(1, 2, 5, 4), ctx.world_size).requires_grad_()
    with pytest.raises(TypeError, match=r"ctx.save\(folder, x=x\)"):
        __import__("pickle").dumps(x)
    with pytest.raises(LayoutError, match="should end in"):
        ShardedTensor(torch.zeros(1, 1, 9, 9), x.sharding)
    with pytest.raises(TypeError, match="plain tensor"):
        ShardedTensor(x, x.sharding)
    assert realign(x, x.sharding) is x
    assert f"{x}" == repr(x) == str(x)
    return repr(x)


def test_texts(pool: WorkerPool) -> None:
    first, second = pool.run(texts, world_size=2)
    assert first == (
        "ShardedTensor(shape=(1, 2, 5, 4), dtype=float32, requires_grad=True, rank 0 holds "
        "[0:3, 0:4] of 5 × 4 px on a mesh of 2 × 1 ranks: [0:3, 0:4], [3:5, 0:4])"
    )
    assert "rank 1 holds [3:5, 0:4]" in second
