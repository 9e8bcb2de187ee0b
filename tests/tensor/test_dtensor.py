"""Round trips between sharded tensors and DTensor, with gradients; placements that are refused."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from shardinv import DistributedContext
from shardinv.tensor import LayoutError, ShardedTensor
from tests.harness import WorkerPool, assert_every_rank_raised
from tests.tensor.compare import meshes


def round_trips(ctx: DistributedContext) -> None:
    """Values, boxes as torch.chunk cuts them, the way back, and gradients both ways."""
    for spatial in ((7, 5), (10, 3), (2, 3), (5, 4, 3)):
        x = torch.randn(2, 3, *spatial, dtype=torch.float64)
        for mesh in meshes(ctx.world_size, len(spatial)):
            sharded = ctx.shard(x, mesh).requires_grad_()
            dt = sharded.to_dtensor()
            what = f"{spatial}, mesh {mesh}"
            assert isinstance(dt, DTensor), what
            assert dt.shape == x.shape, what
            assert dt.device_mesh.ndim == max(sum(m > 1 for m in mesh), 1), what
            assert torch.equal(dt.full_tensor(), x), what
            reference = distribute_tensor(x, dt.device_mesh, dt.placements)
            assert torch.equal(dt.to_local(), reference.to_local()), what
            assert dt.stride() == x.stride(), what
            back = ShardedTensor.from_dtensor(ctx, dt, sharded.sharding)
            assert back.sharding == sharded.sharding, what
            (back * back.sin()).sum().backward()
            expected = x.sin() + x * x.cos()
            assert sharded.grad is not None
            torch.testing.assert_close(sharded.grad.full_tensor(), expected, rtol=1e-12, atol=1e-12)
            kept = ShardedTensor.from_dtensor(ctx.comm, reference)
            assert not kept.sharding.derived
            assert torch.equal(kept.full_tensor(), x), what
            trailing = ctx.shard(x, mesh).movedim(1, -1)
            assert torch.equal(trailing.to_dtensor().full_tensor(), x.movedim(1, -1)), what


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_round_trips(pool: WorkerPool, world_size: int) -> None:
    pool.run(round_trips, world_size=world_size)


def traffic(ctx: DistributedContext) -> int:
    """Only rows that change hands are sent: none where torch.chunk cuts in the same places."""
    before = ctx.ledger.bytes_sent
    ctx.shard(torch.zeros(1, 1, 8, 5), ctx.world_size).to_dtensor()
    assert ctx.ledger.bytes_sent == before
    ctx.shard(torch.zeros(1, 1, 9, 4), ctx.world_size).to_dtensor()
    names = {entry.operation for entry in ctx.ledger.entries()}
    assert names <= {"realign"}, names
    return ctx.ledger.bytes_sent - before


def test_only_rows_that_change_hands_are_sent(pool: WorkerPool) -> None:
    # Balanced: 3 2 2 2; torch.chunk: 3 3 3 0. One row of 16 B, then two.
    assert pool.run(traffic, world_size=4) == [0, 0, 16, 32]


def given_meshes(ctx: DistributedContext) -> None:
    """A mesh of the user's, in an order of its own; nested cuts; replicated ones."""
    x = torch.randn(1, 2, 9, 5, 4)
    mesh = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]))
    dt = ctx.shard(x, mesh).to_dtensor(mesh)
    assert torch.equal(dt.full_tensor(), x)
    assert torch.equal(ShardedTensor.from_dtensor(ctx, dt).full_tensor(), x)
    cube = init_device_mesh("cpu", (2, 2, 1))
    for placements in (
        [Shard(2), Shard(3), Shard(4)],
        [Shard(3), Shard(3), Replicate()],
        [Shard(4), Shard(2), Shard(3)],
        [Shard(-1), Shard(-2), Replicate()],
        [Replicate()] * 3,
    ):
        dt = distribute_tensor(x, cube, placements)
        found = ShardedTensor.from_dtensor(ctx, dt)
        assert torch.equal(found.full_tensor(), x), placements
        wanted = ctx.sharding((9, 5, 4), 4)
        assert ShardedTensor.from_dtensor(ctx, dt, wanted).sharding == wanted
        assert torch.equal(ShardedTensor.from_dtensor(ctx, dt, wanted).full_tensor(), x), placements
    replicated = distribute_tensor(x, cube, [Replicate()] * 3).requires_grad_()
    ShardedTensor.from_dtensor(ctx, replicated).pow(2).sum().backward()
    torch.testing.assert_close(replicated.grad.full_tensor(), 2 * x)


def test_given_meshes(pool: WorkerPool) -> None:
    pool.run(given_meshes, world_size=4)


def refused(ctx: DistributedContext, case: str) -> None:
    x = torch.randn(2, 2, 8, 6)
    mesh = init_device_mesh("cpu", (2, 2))
    if case == "partial":
        dt = DTensor.from_local(x, mesh, [Partial(), Replicate()], run_check=False)
        ShardedTensor.from_dtensor(ctx, dt)
    elif case == "mixed":
        ShardedTensor.from_dtensor(ctx, distribute_tensor(x, mesh, [Shard(2), Replicate()]))
    elif case == "channels":
        ShardedTensor.from_dtensor(ctx, distribute_tensor(x, mesh, [Shard(2), Shard(1)]))
    elif case == "folded":
        ctx.shard(x).flatten(1).to_dtensor()
    elif case == "other boxes":
        dt = distribute_tensor(x, mesh, [Shard(2), Shard(3)])
        ShardedTensor.from_dtensor(ctx, dt, ctx.sharding((8, 7)))
    elif case == "axes":
        ctx.shard(x).to_dtensor(init_device_mesh("cpu", (2, 2, 1)))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("partial", "a sum that has not been taken"),
        ("mixed", "repeats boxes"),
        ("channels", "of batch or channels"),
        ("folded", "view it as an image"),
        ("other boxes", r"boxes of \(8, 7\) px"),
        ("axes", "has 3 axes, the image"),
    ],
)
def test_refused(pool: WorkerPool, case: str, message: str) -> None:
    outcomes = pool.run(refused, case, world_size=4, expect_error=True)
    assert_every_rank_raised(outcomes, LayoutError, message)


def alone(ctx: DistributedContext) -> None:
    ctx.shard(torch.randn(1, 1, 4, 4)).to_dtensor()


def test_without_a_process_group(pool: WorkerPool) -> None:
    outcomes = pool.run(alone, world_size=1, expect_error=True)
    assert_every_rank_raised(outcomes, RuntimeError, "start it with torchrun")
