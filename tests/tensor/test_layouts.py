"""Moving between layouts: scatter, gather, other boxes, windows; what each sends."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from deepinv.loss.metric import MSE, PSNR, SSIM

from shardinv import DistributedContext
from shardinv.geometry import Box
from shardinv.tensor import ShardedTensor, Sharding, fetch_boxes, gather, realign, scatter
from tests.harness import WORLD_SIZES, WorkerPool
from tests.tensor.compare import compare, meshes, run_cases


def layouts(ctx: DistributedContext) -> None:
    """Any image in any layout to any other, with gradients to second order."""
    for shape in ((2, 3, 7, 5), (1, 1, 2, 3), (1, 2, 5, 4, 3)):
        for dtype in (torch.float64, torch.complex128, torch.int32, torch.bool):
            x = (torch.randn(shape, dtype=torch.float64) * 3).to(dtype)
            n = len(shape) - 2
            for mesh in meshes(ctx.world_size, n):
                sharded = ctx.shard(x, mesh)
                what = f"{shape} {dtype} {mesh}"
                assert torch.equal(sharded.full_tensor(), x), what
                assert torch.equal(sharded.flatten(1).full_tensor(), x.flatten(1)), what
                assert torch.equal(sharded.movedim(1, -1).full_tensor(), x.movedim(1, -1)), what
                for other in meshes(ctx.world_size, n):
                    there = realign(sharded, ctx.sharding(shape[2:], other))
                    assert torch.equal(there.to_local(), ctx.shard(x, other).to_local()), what
                    moved = realign(sharded.movedim(1, -1), there.sharding)
                    assert torch.equal(moved.full_tensor(), x.movedim(1, -1)), what
                    # Pointwise functions do not move images that were sharded on purpose.
                    if dtype == torch.float64:

                        def turn(x: torch.Tensor, other: tuple[int, ...] = other) -> torch.Tensor:
                            if not isinstance(x, ShardedTensor):
                                return x.sin() * x
                            y = realign(x.sin(), ctx.sharding(x.shape[2:], other))
                            return realign(y, x.sharding) * x

                        compare(ctx, what, turn, x, mesh=mesh)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_layouts(pool: WorkerPool, world_size: int) -> None:
    pool.run(layouts, world_size=world_size)


def windows(ctx: DistributedContext) -> None:
    """Windows around every box, past the border with zeros, or around it."""
    x = torch.randn(1, 2, 7, 5, dtype=torch.float64)
    for mesh in meshes(ctx.world_size, 2):
        sharded = ctx.shard(x, mesh)
        boxes = sharded.sharding.partition.boxes
        wanted = tuple((box.grow((2, 1)), Box((0, 0), (1, 1))) for box in boxes)
        padded = torch.nn.functional.pad(x, (1, 1, 2, 2))
        ring = torch.nn.functional.pad(x, (1, 1, 2, 2), mode="circular")
        for source, periods in ((padded, None), (ring, (7, 5))):
            window, pixel = fetch_boxes(sharded, wanted, periods=periods)
            inside = sharded.box.grow((2, 1)).shift((2, 1))
            assert torch.equal(window, source[..., *inside.slices()])
            assert torch.equal(pixel, x[..., :1, :1])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_windows(pool: WorkerPool, world_size: int) -> None:
    pool.run(windows, world_size=world_size)


def sent(ctx: DistributedContext) -> list[int]:
    """Bytes that each kind of operation sends from this rank."""
    x = torch.randn(1, 1, 8, 4)
    counts = []

    def sends(what: str, operation: object) -> None:
        before = ctx.ledger.bytes_sent
        assert callable(operation), what
        operation()
        counts.append(ctx.ledger.bytes_sent - before)

    sharded = ctx.shard(x, 2)
    sends("shard", lambda: scatter(x, sharded.sharding))
    sends("pointwise", lambda: (sharded * 2 + sharded).clamp(0).view(1, -1) + 1)
    sends("in the box", lambda: sharded.sum(1))
    sends("crop", lambda: sharded[:, :, 1:])
    sends("difference", lambda: sharded[:, :, 1:] - sharded[:, :, :-1])
    sends("convolution", lambda: torch.conv2d(sharded, torch.ones(1, 1, 3, 3), padding=1))
    sends("gather", lambda: gather(sharded))
    return counts


def test_what_is_sent(pool: WorkerPool) -> None:
    row = 4 * 4
    # A difference needs one row of the next rank's, and brings none home.
    first, second = pool.run(sent, world_size=2)
    assert first == [0, 0, 0, 0, row, row, 4 * row]
    assert second == [0, 0, 0, 0, 0, row, 4 * row] or second == [0, 0, 0, 0, row, row, 4 * row]


def shardings(ctx: DistributedContext) -> None:
    """Equal when the boxes are, whatever they were cut by."""
    a = ctx.sharding((6, 4), (2, 1))
    assert a is ctx.sharding((6, 4), 2)
    again = Sharding(ctx.comm, a.partition, (1, 2))
    assert a == again
    assert hash(a) == hash(again)
    assert a != ctx.sharding((6, 4), (1, 2))
    assert a != a.partition
    assert str(a) == "6 × 4 px on a mesh of 2 × 1 ranks: [0:3, 0:4], [3:6, 0:4]"
    with pytest.raises(ValueError, match="1 boxes are given for 2 ranks"):
        Sharding(ctx.comm, type(a.partition)((6, 4), (Box.whole((6, 4)),)), (1, 1))


def test_shardings(pool: WorkerPool) -> None:
    pool.run(shardings, world_size=2)


def metrics(ctx: DistributedContext) -> None:
    """DeepInverse's metrics as they are."""
    x, y = torch.rand(2, 2, 3, 24, 20, dtype=torch.float64)
    volume = torch.rand(2, 1, 13, 14, 15, dtype=torch.float64)
    small = {"sigma": 0.8, "kernel_size": 5}
    cases = []
    for name, metric, images in (
        ("MSE", MSE(), (x, y)),
        ("PSNR", PSNR(), (x, y)),
        ("PSNR of its own maximum", PSNR(max_pixel=None), (x, y)),
        ("SSIM", SSIM(), (x, y)),
        ("SSIM of its own maximum", SSIM(max_pixel=None, min_pixel=None), (x, y)),
        ("SSIM of the middle", SSIM(center_crop=14), (x, y)),
        ("SSIM, uniform", SSIM(torchmetric_kwargs={"gaussian_kernel": False}), (x, y)),
        ("SSIM of volumes", SSIM(torchmetric_kwargs=small), (volume, volume.flip(0))),
        (
            "multiscale",
            SSIM(multiscale=True, torchmetric_kwargs={"betas": (0.5, 0.5), **small}),
            (x, y),
        ),
    ):
        for mesh in meshes(ctx.world_size, images[0].ndim - 2):
            order = int(name in ("SSIM", "PSNR", "SSIM of volumes"))
            case = partial(compare, ctx, name, metric, *images, mesh=mesh, order=order, rtol=1e-11)
            cases.append((name, case))
    run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_metrics(pool: WorkerPool, world_size: int) -> None:
    pool.run(metrics, world_size=world_size)
