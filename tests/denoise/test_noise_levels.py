"""Noise levels in every form that works in one process: numbers, one an image, maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shardinv import DistributedContext, distribute
from tests.denoise.networks import Conditioned, drunet
from tests.harness import WORLD_SIZES, WorkerPool, assert_close


def noise_levels(batch: int, height: int, width: int) -> dict[str, Any]:
    torch.manual_seed(1)
    double = {"dtype": torch.float64}
    return {
        "float": 0.1,
        "int": 1,
        "0-d": torch.tensor(0.1, **double),
        "(B,)": torch.rand(batch, **double),
        "(B,1,1,1)": torch.rand(batch, 1, 1, 1, **double),
        "(1,1,1,1)": torch.rand(1, 1, 1, 1, **double),
        "(B,1,H,W)": torch.rand(batch, 1, height, width, **double),
        "(1,1,H,W)": torch.rand(1, 1, height, width, **double),
        "(B,1,H,1)": torch.rand(batch, 1, height, 1, **double),
        "list": [0.1 * (number + 1) for number in range(batch)],
        "list of 0-d": [torch.tensor(0.1 * (number + 1), **double) for number in range(batch)],
    }


def every_noise_level(ctx: DistributedContext, batch: int) -> None:
    torch.manual_seed(0)
    network = Conditioned()
    x = torch.rand(batch, 1, 26, 22, dtype=torch.float64)
    for most in (1, None, 3):
        block = distribute(network, ctx, patch_size=10, overlap=2, max_batch_size=most)
        for name, sigma in noise_levels(batch, 26, 22).items():
            what = f"{name}, {batch} images, {most} tiles a batch: "
            with torch.no_grad():
                expected = network(x, sigma)
                assert_close(block(x, sigma), expected, 1e-12, what)
                assert_close(block(x, sigma=sigma), expected, 1e-12, what + "by keyword")
            assert_close(block(x, sigma).detach(), expected, 1e-12, what + "with a gradient")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_form_of_noise_level(pool: WorkerPool, world_size: int) -> None:
    for batch in (1, 2):
        pool.run(every_noise_level, batch, world_size=world_size)


def levels_of_drunet(ctx: DistributedContext) -> None:
    network = drunet().eval()
    x = torch.rand(2, 1, 64, 32, dtype=torch.float64)
    levels = noise_levels(2, 64, 32)
    block = distribute(network, ctx, patch_size=32, overlap=32, max_batch_size=2)
    with torch.no_grad():
        for name in ("float", "0-d", "(B,)", "(B,1,1,1)", "(B,1,H,W)"):
            # Each of the two windows is the whole image, so the result is exact.
            assert_close(block(x, levels[name]), network(x, levels[name]), 1e-6, name)


def test_noise_levels_of_a_denoiser_of_deepinverse(pool: WorkerPool) -> None:
    pool.run(levels_of_drunet, world_size=2)


class Guided(nn.Module):
    """Takes more than a noise level."""

    def forward(self, x: torch.Tensor, guides: dict[str, Any], *, gain: float) -> torch.Tensor:
        return x * guides["weight"] + gain


def nested_arguments(ctx: DistributedContext) -> tuple[torch.Tensor, ...]:
    network = Guided()
    block = distribute(network, ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 26, 22, dtype=torch.float64)
    weight = torch.rand((), dtype=torch.float64, requires_grad=True)
    result = block(x, {"weight": weight}, gain=2.0)
    assert_close(result, network(x, {"weight": weight}, gain=2.0), 1e-12)
    (gradient,) = torch.autograd.grad(result.sum(), weight)
    assert_close(gradient, x.sum(), 1e-12)
    return (gradient,)


@pytest.mark.parametrize("world_size", [1, 3])
def test_tensors_inside_other_arguments(pool: WorkerPool, world_size: int) -> None:
    pool.run(nested_arguments, world_size=world_size)


def map_of_another_size(ctx: DistributedContext) -> None:
    block = distribute(Conditioned(), ctx, patch_size=8, overlap=2)
    x = torch.rand(1, 1, 24, 24, dtype=torch.float64)
    with pytest.raises(ValueError, match="must be the image's, or of length 1"):
        block(x, torch.rand(1, 1, 12, 12, dtype=torch.float64))


def test_map_of_another_size(pool: WorkerPool) -> None:
    pool.run(map_of_another_size, world_size=2)
