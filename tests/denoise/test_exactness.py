"""On tiles as on the whole image: to rounding where the halo holds what the network sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.models import UNet
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from tests.denoise.networks import Blur, Conditioned, Strided, dncnn, drunet, ffdnet
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_same_on_every_rank

ROUNDING = 1e-12


def unet() -> nn.Module:
    return UNet(batch_norm=False, scales=3, channels_per_scale=[2, 2, 2]).double()


def sees_nothing_further(
    name: str,
) -> tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """Network, image shape, arguments of the network, tile options: all with enough of a halo."""
    sigma = {"sigma": 0.1}
    return {
        "FFDNet of 4 layers": (ffdnet, (2, 1, 72, 50), sigma, {"patch_size": 24, "overlap": 8}),
        "FFDNet of 12 layers": (
            lambda: ffdnet(12),
            (1, 1, 128, 96),
            sigma,
            {"patch_size": 48, "overlap": 24},
        ),
        "FFDNet in colour, odd options": (
            lambda: ffdnet(5, channels=3),
            (1, 3, 62, 62),
            sigma,
            {"patch_size": 21, "overlap": 9},
        ),
        "DnCNN": (lambda: dncnn(5), (1, 1, 51, 37), {}, {"patch_size": 17, "overlap": 5}),
        "down and up again": (Strided, (1, 1, 48, 54), {}, {"patch_size": 16, "overlap": 10}),
        "UNet": (unet, (1, 1, 96, 64), {}, {"patch_size": 32, "overlap": 32}),
        "DnCNN of a volume": (
            lambda: dncnn(3, dim=3),
            (1, 1, 13, 22, 17),
            {},
            {"patch_size": 8, "overlap": 3},
        ),
        "two tiles only": (lambda: dncnn(3), (1, 1, 20, 11), {}, {"patch_size": 11, "overlap": 3}),
        "smaller than a tile": (lambda: dncnn(3), (1, 1, 9, 5), {}, {"overlap": 3}),
        "DRUNet in one tile": (drunet, (1, 1, 40, 32), sigma, {"patch_size": 40, "overlap": 8}),
        "other number of channels": (
            lambda: Conditioned(1, 4),
            (1, 1, 30, 30),
            sigma,
            {"patch_size": 11, "overlap": 2},
        ),
    }[name]


EXACT = (
    "FFDNet of 4 layers",
    "FFDNet of 12 layers",
    "FFDNet in colour, odd options",
    "DnCNN",
    "down and up again",
    "UNet",
    "DnCNN of a volume",
    "two tiles only",
    "smaller than a tile",
    "DRUNet in one tile",
    "other number of channels",
)


def compare_with_whole_images(ctx: DistributedContext, names: tuple[str, ...]) -> list[Tensor]:
    results = []
    for name in names:
        make, shape, arguments, options = sees_nothing_further(name)
        torch.manual_seed(0)
        network = make().eval()
        x = torch.rand(shape, dtype=torch.float64)
        block = distribute(network, ctx, **options, type_object="denoiser")
        with torch.no_grad():
            results.append(block(x, **arguments))
            assert_close(results[-1], network(x, **arguments), ROUNDING, name)
    return results


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_as_the_whole_image(pool: WorkerPool, world_size: int) -> None:
    results = pool.run(compare_with_whole_images, EXACT, world_size=world_size)
    assert_same_on_every_rank(results)


def halo_too_small(ctx: DistributedContext, overlaps: tuple[int, ...]) -> list[Tensor]:
    network = drunet().eval()
    x = torch.rand(1, 1, 128, 96, dtype=torch.float64)
    with torch.no_grad():
        return [network(x, 0.1)] + [
            distribute(network, ctx, patch_size=48, overlap=overlap)(x, 0.1) for overlap in overlaps
        ]


def test_error_falls_as_the_halo_grows_whatever_the_number_of_ranks(pool: WorkerPool) -> None:
    overlaps = (0, 8, 16, 32, 48)
    worlds = [pool.run(halo_too_small, overlaps, world_size=size) for size in WORLD_SIZES]
    for results in worlds:
        assert_same_on_every_rank(results)
        assert_close(results[0], worlds[0][0], ROUNDING, "against one rank, ")
    whole, *tiled = worlds[0][0]
    errors = [float((result - whole).norm() / whole.norm()) for result in tiled]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-3
    assert errors[-1] < errors[0] / 20


def other_options(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    plane, volume = Blur().eval(), Blur(dim=3).eval()
    image = torch.rand(2, 1, 40, 36, dtype=torch.float64)
    cube = torch.rand(1, 1, 12, 20, 18, dtype=torch.float64)
    with torch.no_grad():
        for network, x, options in [
            (plane, image, {"patch_size": 16, "tiling_dims": 2}),
            (plane, image, {"patch_size": 16, "tiling_dims": 3}),
            (plane, image, {"patch_size": 16, "tiling_dims": -1}),
            (plane, image, {"patch_size": 16, "tiling_dims": (-2, -1)}),
            (plane, image, {"patch_size": (16, 9), "overlap": (1, 2)}),
            (plane, image, {"patch_size": (9, 16), "overlap": (2, 1), "tiling_dims": (3, 2)}),
            (plane, image, {"patch_size": 1}),
            (plane, image, {"patch_size": 16, "stride": 4}),
            (volume, cube, {"patch_size": 8, "tiling_dims": (3, 4)}),
            (volume, cube, {"patch_size": (4, 20, 9), "overlap": (1, 0, 3)}),
            (volume, cube, {"patch_size": 7, "tiling_dims": (2,)}),
        ]:
            block = distribute(network, ctx, **{"overlap": 1, **options})
            assert_close(block(x), network(x), ROUNDING, str(options))
        for most in (None, 1, 2, 3, 100):
            block = distribute(plane, ctx, patch_size=12, overlap=1, max_batch_size=most)
            assert_close(block(image), plane(image), ROUNDING, f"{most} tiles a batch")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_axes_sizes_and_batches_of_tiles_do_not_change_the_result(
    pool: WorkerPool, world_size: int
) -> None:
    pool.run(other_options, world_size=world_size)


def any_memory_layout(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    network = dncnn(3, channels=3).eval()
    block = distribute(network, ctx, patch_size=12, overlap=3)
    x = torch.rand(1, 3, 30, 26, dtype=torch.float64)
    layouts = {
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x.mT.contiguous().mT,
        "every second": torch.rand(1, 3, 60, 52, dtype=torch.float64)[..., ::2, ::2],
        "expanded": x[:, :1].expand(2, 3, 30, 26),
    }
    with torch.no_grad():
        for name, image in layouts.items():
            before = image.clone()
            assert_close(block(image), network(image), ROUNDING, name)
            assert_close(image, before, 0.0, f"{name}: the image itself")
    with torch.inference_mode():
        assert_close(block(x), network(x), ROUNDING, "inference mode")


@pytest.mark.parametrize("world_size", [1, 3])
def test_any_memory_layout(pool: WorkerPool, world_size: int) -> None:
    pool.run(any_memory_layout, world_size=world_size)


class AddsInPlace(nn.Module):
    """Writes on its input: each tile must get what the whole image gets."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1.0)


def run_in_place(ctx: DistributedContext) -> None:
    # Windows of whole rows are contiguous in memory: a view of one would change its neighbour.
    x = torch.rand(1, 1, 32, 8, dtype=torch.float64)
    block = distribute(AddsInPlace(), ctx, patch_size=8, overlap=4, tiling_dims=2)
    assert_close(block(x.clone()), x + 1.0, 0.0)


@pytest.mark.parametrize("world_size", [1, 2])
def test_network_that_works_in_place(pool: WorkerPool, world_size: int) -> None:
    pool.run(run_in_place, world_size=world_size)
