"""Every floating and complex type, also where a rank has no tile to learn the type from."""

from __future__ import annotations

import pytest
import torch
from deepinv.models import ComplexDenoiserWrapper
from torch import nn

from shardinv import DistributedContext, distribute
from tests.denoise.networks import Conditioned, Stencil
from tests.harness import WORLD_SIZES, WorkerPool, assert_close

TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
)


def every_type(ctx: DistributedContext) -> None:
    for dtype in TYPES:
        torch.manual_seed(0)
        network = Stencil().to(torch.empty(0, dtype=dtype).real.dtype)
        x = torch.randn(2, 3, 14, 12, dtype=torch.complex128).to(
            dtype if dtype.is_complex else torch.complex128
        )
        x = x if dtype.is_complex else x.real.to(dtype)
        block = distribute(network, ctx, patch_size=8, overlap=1)  # four tiles
        two = distribute(network, ctx, patch_size=(8, 12), overlap=1)
        with torch.no_grad():
            # The very same operations for each pixel, so nothing is rounded otherwise.
            assert_close(block(x), network(x), 0.0, f"{dtype}")
            assert_close(two(x), network(x), 0.0, f"{dtype}, two tiles")
            if dtype.is_complex:
                assert_close(block(x.conj()), network(x.conj()), 0.0, f"conjugate {dtype}")
        x.requires_grad_()
        mine, reference = two(x), network(x)
        assert_close(mine, reference, 0.0, f"{dtype} with a gradient")
        (one,) = torch.autograd.grad(mine.abs().sum(), x)
        (other,) = torch.autograd.grad(reference.abs().sum(), x)
        assert_close(one, other, 4 * torch.finfo(dtype).eps, f"gradient of {dtype}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_type(pool: WorkerPool, world_size: int) -> None:
    pool.run(every_type, world_size=world_size)


def complex_convolution(ctx: DistributedContext) -> None:
    for dtype in (torch.complex64, torch.complex128):
        torch.manual_seed(0)
        network = nn.Conv2d(1, 2, 3, padding=1, dtype=dtype)
        x = torch.randn(1, 1, 16, 9, dtype=dtype)
        block = distribute(network, ctx, patch_size=9, overlap=1)  # two tiles
        assert_close(block(x), network(x), 1e-6 if dtype == torch.complex64 else 1e-12)
        expected = torch.autograd.grad(network(x).abs().sum(), list(network.parameters()))
        mine = torch.autograd.grad(block(x).abs().sum(), list(network.parameters()))
        assert_close(mine, expected, 1e-5 if dtype == torch.complex64 else 1e-12, "weights")
    wrapped = ComplexDenoiserWrapper(Conditioned())
    x = torch.randn(2, 1, 16, 9, dtype=torch.complex128)
    block = distribute(wrapped, ctx, patch_size=9, overlap=2)
    assert_close(block(x, 0.1), wrapped(x, 0.1), 1e-12, "a wrapped real denoiser")


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_complex_weights(pool: WorkerPool, world_size: int) -> None:
    pool.run(complex_convolution, world_size=world_size)


def autocast(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    network = nn.Conv2d(1, 1, 3, padding=1)
    x = torch.rand(1, 1, 16, 16)
    block = distribute(network, ctx, patch_size=(8, 16), overlap=1)
    assert block(x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine, expected = block(x), network(x)
    assert_close(mine, expected, 1e-2)
    assert mine.dtype == torch.bfloat16


def test_type_that_autocast_chooses(pool: WorkerPool) -> None:
    pool.run(autocast, world_size=3)
