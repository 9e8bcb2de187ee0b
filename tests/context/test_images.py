"""The context's verbs for images: boxes of every rank, what disagrees between ranks is refused."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from shardinv import DistributedContext
from shardinv.exchange import DisagreementError
from shardinv.geometry import Box
from shardinv.tensor import LayoutError, ShardedTensor, realign
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.tensor.compare import meshes

SHAPES = ((7, 5), (1, 3), (16, 16), (5, 4, 3), (9,))


def made(ctx: DistributedContext) -> None:
    """shard, gather, zeros, ones, full, from_function, from_local: the same image each way."""
    for spatial in SHAPES:
        x = torch.arange(2.0 * 3 * prod(spatial)).reshape(2, 3, *spatial)
        for mesh in [None, *meshes(ctx.world_size, len(spatial))]:
            what = f"{spatial}, mesh {mesh}"
            sharded = ctx.shard(x, mesh)
            assert ctx.shard(sharded) is sharded, what
            assert sharded.shape == x.shape, what
            assert sharded.to_local().shape == (2, 3, *sharded.box.shape), what
            assert torch.equal(sharded.to_local(), x[..., *sharded.box.slices()]), what
            assert torch.equal(ctx.gather(sharded), x), what
            assert ctx.gather(x) is x, what
            calls = []

            def pixels(box: Box, x: torch.Tensor = x, calls: list[Box] = calls) -> torch.Tensor:
                calls.append(box)
                return x[..., *box.slices()].clone()

            built = ctx.from_function(x.shape, pixels, mesh=mesh)
            assert calls == [sharded.box], what
            assert torch.equal(built.full_tensor(), x), what
            assert built.sharding == sharded.sharding, what
            if len(sharded.sharding.mesh) == len(spatial):
                held = ctx.from_local(sharded.to_local(), sharded.sharding.mesh)
                assert torch.equal(held.full_tensor(), x), what
                assert (held + sharded).sharding == sharded.sharding, what
            zeros = ctx.zeros(x.shape, mesh=mesh, dtype=torch.complex64)
            assert zeros.dtype == torch.complex64, what
            assert float(ctx.ones(x.shape, mesh=mesh).sum()) == x.numel(), what
            assert float(ctx.full(x.shape, 2.5, mesh=mesh).max()) == 2.5, what
        assert ctx.shard(x).to_local().untyped_storage().nbytes() <= x.nbytes


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_made(pool: WorkerPool, world_size: int) -> None:
    pool.run(made, world_size=world_size)


def uneven(ctx: DistributedContext) -> None:
    """Boxes that the ranks bring with them: of any length, also none."""
    lengths = [3, 0, 2, 4][: ctx.world_size]
    first = sum(lengths[: ctx.rank])
    x = torch.randn(1, 2, sum(lengths), 5, dtype=torch.float64)
    mine = x[:, :, first : first + lengths[ctx.rank]].clone()
    sharded = ctx.from_local(mine)
    assert torch.equal(sharded.full_tensor(), x)
    assert sharded.to_local() is mine
    even = realign(sharded, ctx.sharding(x.shape[2:]))
    assert torch.equal(even.full_tensor(), x)
    with pytest.raises(LayoutError) if ctx.world_size > 1 else _nothing():
        sharded + even


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_uneven(pool: WorkerPool, world_size: int) -> None:
    pool.run(uneven, world_size=world_size)


def aligned(ctx: DistributedContext) -> list[Any]:
    sharding = ctx.sharding((64, 20), (2, 2), align=(16, 8))
    return [(box.start, box.stop) for box in sharding.partition.boxes]


def test_aligned(pool: WorkerPool) -> None:
    assert pool.run(aligned, world_size=4)[0] == [
        ((0, 0), (32, 16)),
        ((0, 16), (32, 20)),
        ((32, 0), (64, 16)),
        ((32, 16), (64, 20)),
    ]


def on_a_mesh(ctx: DistributedContext) -> None:
    """A DeviceMesh says which rank gets which cell."""
    x = torch.randn(1, 1, 8, 6, 4)
    mesh = DeviceMesh("cpu", torch.tensor([[3, 1], [0, 2]]))
    sharded = ctx.shard(x, mesh)
    assert sharded.sharding.mesh == (2, 2, 1)
    corner = {3: (0, 0), 1: (0, 3), 0: (4, 0), 2: (4, 3)}[ctx.rank]
    assert sharded.box.start == (*corner, 0)
    assert torch.equal(sharded.full_tensor(), x)
    cube = DeviceMesh("cpu", torch.arange(4).reshape(2, 1, 2))
    assert torch.equal(ctx.shard(x, cube).full_tensor(), x)
    assert ctx.shard(x, DeviceMesh("cpu", torch.arange(4))).sharding.mesh == (4, 1, 1)


def test_on_a_mesh(pool: WorkerPool) -> None:
    pool.run(on_a_mesh, world_size=4)


def gradients(ctx: DistributedContext) -> None:
    """The gradient of a replicated image that was sharded is replicated, and the other way."""
    x = torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    (ctx.shard(x) ** 3).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2, rtol=1e-12, atol=0)
    sharded = ctx.shard(x.detach()).requires_grad_()
    (ctx.gather(sharded) ** 3).sum().backward()
    assert sharded.grad is not None
    torch.testing.assert_close(sharded.grad.full_tensor(), 3 * x.detach() ** 2, rtol=1e-12, atol=0)

    def pixels(box: Box) -> torch.Tensor:
        return x.detach()[..., *box.slices()].clone().requires_grad_()

    made_here = ctx.from_function(x.shape, pixels)
    assert made_here.requires_grad
    (grad,) = torch.autograd.grad(made_here.norm(), made_here)
    assert isinstance(grad, ShardedTensor)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gradients(pool: WorkerPool, world_size: int) -> None:
    pool.run(gradients, world_size=world_size)


def disagreeing(ctx: DistributedContext, case: str) -> None:
    last = ctx.rank == ctx.world_size - 1
    if case == "shape":
        ctx.shard(torch.zeros(1, 1, 8, 8 + last))
    elif case == "type":
        ctx.shard(torch.zeros(1, 1, 8, 8, dtype=torch.float64 if last else torch.float32))
    elif case == "gradient":
        ctx.shard(torch.zeros(1, 1, 8, 8, requires_grad=last))
    elif case == "mesh":
        ctx.shard(torch.zeros(1, 1, 8, 8), (2, 1) if last else (1, 2))
    elif case == "align":
        ctx.shard(torch.zeros(1, 1, 9, 9), (2, 1), align=8 if last else 1)
    elif case == "after others":
        x = torch.zeros(1, 1, 8, 8)
        ctx.shard(x)
        ctx.shard(x)
        ctx.shard(torch.zeros(1, 1, 8, 8 + last))
    elif case == "function shape":
        ctx.from_function((1, 1 + last, 8, 8), lambda box: torch.zeros(1, 1 + last, *box.shape))
    elif case == "function type":
        dtype = torch.float64 if last else torch.float32
        ctx.from_function((1, 1, 8, 8), lambda box: torch.zeros(1, 1, *box.shape, dtype=dtype))
    elif case == "function result":
        ctx.from_function((1, 1, 8, 8), lambda box: torch.zeros(1, 1 + last, *box.shape))
    elif case == "local channels":
        ctx.from_local(torch.zeros(1, 1 + last, 4, 8))
    elif case == "local columns":
        ctx.from_local(torch.zeros(1, 1, 4, 8 + last))
    elif case == "local type":
        ctx.from_local(torch.zeros(1, 1, 4, 8, dtype=torch.float64 if last else torch.float32))
    elif case == "local axes":
        ctx.from_local(torch.zeros((1, 1, 4, 8, 2) if last else (1, 1, 4, 8)))
    elif case == "zeros":
        ctx.zeros((1, 1, 8, 8 + last))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("shape", r"\(1, 1, 8, 8\).*\(1, 1, 8, 9\)"),
        ("type", "float32.*float64"),
        ("gradient", "False.*True"),
        ("mesh", r"\(1, 2\).*\(2, 1\)"),
        ("align", "align=1.*align=8"),
        ("function shape", r"\(1, 1, 8, 8\).*\(1, 2, 8, 8\)"),
        ("function type", "float32.*float64"),
        ("function result", "False.*True"),
        ("local channels", "different kinds"),
        ("local columns", "don't fit together"),
        ("local type", "different kinds"),
        ("local axes", "different kinds"),
        ("zeros", r"\(1, 1, 8, 8\).*\(1, 1, 8, 9\)"),
    ],
)
def test_ranks_that_disagree(pool: WorkerPool, case: str, message: str) -> None:
    outcomes = pool.run(disagreeing, case, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, DisagreementError, message)


BAD: dict[str, tuple[type[Exception], str]] = {
    "cells": (ValueError, r"the mesh \(5, 1\) has 5 cells"),
    "axes": (ValueError, "has 3 axes, the image"),
    "no cell": (ValueError, "cells"),
    "flat": (ValueError, r"\(B, C, \*spatial\) is needed"),
    "flat function": (ValueError, r"\(B, C, \*spatial\) is needed"),
    "flat local": (ValueError, r"\(B, C, \*spatial\) is needed"),
    "result": (ValueError, "the function returned shape"),
    "again": (LayoutError, "sharded already"),
    "other size": (LayoutError, "8 × 8 px .* 8 × 7 px"),
}


def bad(ctx: DistributedContext, case: str) -> None:
    x = torch.zeros(1, 1, 8, 8)
    if case == "cells":
        ctx.shard(x, 5)
    elif case == "axes":
        ctx.shard(x, (1, 1, ctx.world_size))
    elif case == "no cell":
        ctx.shard(x, (0, 3))
    elif case == "flat":
        ctx.shard(x[0, 0])
    elif case == "flat function":
        ctx.from_function((8, 8), lambda box: torch.zeros(box.shape))
    elif case == "flat local":
        ctx.from_local(x[0, 0])
    elif case == "result":
        ctx.from_function((1, 1, 8, 8), lambda box: torch.zeros(1, 1, 3, 3))
    elif case == "again":
        ctx.shard(ctx.shard(torch.zeros(1, 1, 10, 8)), align=4)
    elif case == "other size":
        realign(ctx.shard(x), ctx.sharding((8, 7)))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", BAD)
def test_bad_input(pool: WorkerPool, world_size: int, case: str) -> None:
    if case == "again" and world_size == 1:
        pytest.skip("one rank holds the same box with any alignment")
    outcomes = pool.run(bad, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, *BAD[case])
