"""How images of any size are cut, how much work that is, and what ``describe`` says of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shardinv import DistributedContext, distribute
from shardinv.denoise import TilingOptions
from tests.denoise.networks import Blur
from tests.harness import WorkerPool, assert_close


def work(shape: tuple[int, ...], stride: int = 1, **options: object) -> tuple[int, float]:
    """Number of tiles, and pixels computed over pixels kept."""
    grid = TilingOptions(**options).grid(shape, stride)
    return len(grid.tiles), grid.work_multiplier


@pytest.mark.parametrize(
    ("shape", "tiles", "at_most"),
    [
        ((256, 256), 1, 1.0),
        ((128, 128), 1, 1.0),
        ((100, 100), 1, 1.0),
        ((200, 200), 1, 1.0),  # not nine full-size windows
        ((512, 200), 2, 1.25),
        ((512, 512), 4, 1.27**2),
        ((1025, 1025), 25, 2.25),
        ((1, 3), 1, 1.0),
    ],
)
def test_work_with_default_options(shape: tuple[int, ...], tiles: int, at_most: float) -> None:
    for stride in (1, 8):
        count, multiplier = work(shape, stride)
        assert count == tiles
        assert 1.0 <= multiplier <= at_most + 0.01


def test_work_of_a_thin_volume() -> None:
    assert work((8, 48, 48), 8, patch_size=16, overlap=0) == (9, 1.0)
    count, multiplier = work((8, 48, 48), 8, patch_size=16, overlap=8)
    assert count == 9
    assert multiplier == pytest.approx((80 / 48) ** 2)


def test_sizes_are_those_of_the_axes_named() -> None:
    options = TilingOptions(patch_size=(9, 16), overlap=(1, 3), tiling_dims=(3, -2))
    grid = options.grid((40, 36), 1)
    assert grid.halo == (3, 1)
    assert max(tile.core.shape[0] for tile in grid.tiles) == 14  # three balanced tiles of 40
    assert max(tile.core.shape[1] for tile in grid.tiles) == 9
    one_axis = TilingOptions(patch_size=10, overlap=2, tiling_dims=2).grid((40, 36), 1)
    assert {tile.core.shape for tile in one_axis.tiles} == {(10, 36)}
    assert one_axis.halo == (2, 0)


def test_tiles_start_at_multiples_of_the_stride() -> None:
    grid = TilingOptions(patch_size=50, overlap=9).grid((203, 61), 8)
    assert grid.halo == (16, 16)
    for tile in grid.tiles:
        assert all(start % 8 == 0 for start in (*tile.core.start, *tile.window.start))
        assert max(tile.core.shape) <= 50


def run_sizes(ctx: DistributedContext) -> dict[str, Tensor]:
    torch.manual_seed(0)
    network, results = Blur(), {}
    with torch.no_grad():
        block = distribute(network, ctx, type_object="denoiser")
        for shape in [(256, 256), (128, 128), (100, 100), (512, 200), (200, 200), (1025, 1025)]:
            x = torch.rand(1, 1, *shape, dtype=torch.float64)
            assert_close(block(x), network(x), 1e-12, str(shape))
            results[str(shape)] = block(x).mean()
        tiny = torch.rand(1, 1, 1, 2, dtype=torch.float64)
        assert_close(block(tiny), network(tiny), 1e-12, "a pixel wide")
        thin = torch.rand(1, 1, 8, 48, 48, dtype=torch.float64)
        volume = Blur(dim=3)
        block = distribute(volume, ctx, patch_size=16, overlap=2)
        assert_close(block(thin), volume(thin), 1e-12, "thin volume")
    return results


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_images_of_any_size(pool: WorkerPool, world_size: int) -> None:
    pool.run(run_sizes, world_size=world_size)


def tell(ctx: DistributedContext) -> tuple[str, str, str]:
    block = distribute(Blur(), ctx, patch_size=16, overlap=4)
    before = block.describe()
    block(torch.rand(1, 1, 40, 32, dtype=torch.float64))
    return before, block.describe(), block.describe((16, 16))


def test_description_says_who_computes_what(pool: WorkerPool) -> None:
    for before, after, other in pool.run(tell, world_size=4):
        assert "call it" in before
        assert "6 tiles of an image of 40 × 32 px" in after
        assert "W = 1.750" in after
        assert [line.split(":")[0].strip() for line in after.splitlines()[3:7]] == [
            f"rank {rank}" for rank in range(4)
        ]
        assert "imbalance" in after
        assert f"{3 / 4 * 40 * 32:.0f} values" in after
        assert "1 tiles" in other
        assert "rank 3: 0 tiles" in other


def test_description_in_one_process() -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        block = distribute(Blur(), ctx, type_object="denoiser")
        assert block.describe() in repr(block)
