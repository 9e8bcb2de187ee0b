"""Bad input and networks that do not fit: a clear error on every rank, and nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from shardinv.denoise import DistributedProcessing, TilingOptions
from tests.denoise.networks import Blur, Conditioned
from tests.harness import WorkerPool, assert_every_rank_raised


class LosesGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.detach()).detach()


class Shrinks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[..., ::2, ::2]


class Flattens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


class ForgetsTheBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:1]


class GivesTwo(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x, x


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("the network's own")


def call(ctx: DistributedContext, network: nn.Module, x: Any, **options: Any) -> None:
    """Four tiles in the tests below, so every rank has one."""
    distribute(network, ctx, **{"patch_size": 8, "overlap": 2, **options})(x)


@pytest.mark.parametrize(
    ("network", "error", "text"),
    [
        (LosesGradient(), RuntimeError, "output has none: it would be lost.*no_grad"),
        (Shrinks(), ValueError, r"\(1, 1, 10, 10\) into \(1, 1, 5, 5\).*keep the batch and the"),
        (Flattens(), ValueError, r"\(1, 1, 10, 10\) into \(\)"),
        (GivesTwo(), ValueError, "gives a tuple.*must give one image"),
        (Raises(), KeyError, "the network's own"),
    ],
)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_networks_that_do_not_fit(
    pool: WorkerPool, world_size: int, network: nn.Module, error: type[Exception], text: str
) -> None:
    outcomes = pool.run(
        call, network, torch.rand(1, 1, 16, 16), world_size=world_size, expect_error=True
    )
    assert_every_rank_raised(outcomes, error, text)


def test_network_that_forgets_the_batch(pool: WorkerPool) -> None:
    outcomes = pool.run(call, ForgetsTheBatch(), torch.rand(2, 1, 16, 16), expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, "keep the batch")


def gradient_lost_on_purpose(ctx: DistributedContext) -> None:
    block = distribute(LosesGradient(), ctx, patch_size=8, overlap=2)
    with torch.no_grad():
        block(torch.rand(1, 1, 16, 16))


def test_no_gradient_is_lost_where_none_is_asked_for(pool: WorkerPool) -> None:
    pool.run(gradient_lost_on_purpose, world_size=2)


def closed_over_weights(ctx: DistributedContext) -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1).double()

    def denoise(image: Tensor) -> Tensor:
        return layer(image)

    block = DistributedProcessing(ctx, denoise, TilingOptions(patch_size=8, overlap=1))
    x = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        assert (block(x) - layer(x)).abs().max() < 1e-12
    for needs_gradient in (False, True):
        with pytest.raises(RuntimeError, match=r"it would be lost.*nn\.Module"):
            block(x.requires_grad_(needs_gradient))

    def descend(image: Tensor) -> Tensor:
        """Has no weights, and a graph of its own."""
        with torch.enable_grad():
            image = image.requires_grad_()
            energy = (image**4).sum()
            (gradient,) = torch.autograd.grad(energy, image, create_graph=True)
        return image - gradient

    block = DistributedProcessing(ctx, descend, TilingOptions(patch_size=8, overlap=1))
    assert not block(x.detach()).requires_grad
    (mine,) = torch.autograd.grad(block(x).sum(), x)
    assert (mine - (1 - 12 * x**2)).abs().max() < 1e-12


@pytest.mark.parametrize("world_size", [1, 2])
def test_function_with_weights_of_its_own(pool: WorkerPool, world_size: int) -> None:
    pool.run(closed_over_weights, world_size=world_size)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"overlap": 16}, r"overlap \(16, 16\) is as wide as the image.*smaller overlap"),
        ({"overlap": (2, 40)}, r"as wide as the image, of shape \(16, 16\)"),
        ({"patch_size": (8, 8, 8)}, r"patch_size \(8, 8, 8\) has 3 numbers, 2 axes are tiled"),
        ({"overlap": (1,)}, r"overlap \(1,\) has 1 numbers, 2 axes are tiled"),
        ({"tiling_dims": 2, "patch_size": (8, 8)}, "2 numbers, 1 axes are tiled"),
        ({"tiling_dims": 1}, "must name distinct spatial axes.*2 to 3"),
        ({"tiling_dims": 4}, "must name distinct spatial axes"),
        ({"tiling_dims": (2, -2)}, "must name distinct spatial axes"),
    ],
)
def test_options_that_cannot_cut_the_image(
    pool: WorkerPool, options: dict[str, Any], text: str
) -> None:
    x = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    outcomes = pool.run(call, Blur(), x, **options, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, text)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        ([1.0, 2.0], TypeError, r"the image must be a tensor \(B, C, \*spatial\), got a list"),
        (torch.rand(16, 16), ValueError, r"\(B, C, \*spatial\) is needed, got shape \(16, 16\)"),
        (torch.rand(1, 1, 0, 16), ValueError, r"at least one pixel, got shape \(0, 16\)"),
        (torch.empty(1, 1, 16, 16, device="meta"), ValueError, r"on meta.*x\.to\(ctx\.device\)"),
    ],
)
def test_inputs_that_are_no_image(
    pool: WorkerPool, x: Any, error: type[Exception], text: str
) -> None:
    assert_every_rank_raised(pool.run(call, Blur(), x, expect_error=True), error, text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patch_size": 0}, "patch_size must be a whole number of pixels, at least 1.*got 0"),
        ({"patch_size": -8}, "patch_size must be a whole number.*got -8"),
        ({"patch_size": 8.0}, "patch_size must be a whole number.*got 8.0"),
        ({"patch_size": (8, -1)}, r"patch_size must be.*got \(8, -1\)"),
        ({"patch_size": ()}, "patch_size must be"),
        ({"overlap": -1}, "overlap must be a whole number of pixels, at least 0.*got -1"),
        ({"max_batch_size": 0}, "max_batch_size must be a whole number of at least 1 or None"),
        ({"checkpoint_batches": "sometimes"}, "'auto', 'always' or 'never', got 'sometimes'"),
        ({"stride": 0}, "stride must be a whole number of pixels, at least 1, or None, got 0"),
        ({"stride": "8"}, "stride must be a whole number of pixels, at least 1, or None, got '8'"),
        ({"tiling_dims": "all"}, "tiling_dims must be.*got 'all'"),
        ({"tiling_dims": ()}, "tiling_dims must be"),
    ],
)
def test_options_without_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TilingOptions(**options)


def shapes_that_disagree(ctx: DistributedContext) -> None:
    block = distribute(Blur(), ctx, patch_size=8, overlap=1)
    block(torch.rand(1, 1, 16 + ctx.rank, 16, dtype=torch.float64))


def gradients_that_disagree(ctx: DistributedContext) -> None:
    block = distribute(Conditioned(), ctx, patch_size=8, overlap=2)
    sigma = torch.tensor(0.1, dtype=torch.float64, requires_grad=ctx.rank == 0)
    block(torch.rand(1, 1, 16, 16, dtype=torch.float64), sigma)


def weights_that_disagree(ctx: DistributedContext) -> None:
    block = distribute(Conditioned(), ctx, patch_size=8, overlap=2)
    if ctx.rank == 1:
        block.first.requires_grad_(False)
    block(torch.rand(1, 1, 16, 16, dtype=torch.float64), 0.1)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (shapes_that_disagree, r"rank 0: .*16, 16.*rank 1: .*17, 16"),
        (gradients_that_disagree, "which arguments and weights of the network need a gradient"),
        (weights_that_disagree, "which arguments and weights of the network need a gradient"),
    ],
)
def test_ranks_that_disagree(pool: WorkerPool, function: Any, text: str) -> None:
    outcomes = pool.run(function, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, text)


def values_that_disagree(ctx: DistributedContext, what: str) -> None:
    block = distribute(Conditioned(), ctx, patch_size=8, overlap=2)
    x = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    sigma = torch.full((1,), 0.1, dtype=torch.float64)
    with torch.no_grad():
        block(x, sigma)
        if ctx.rank == 1:
            {"image": x, "arguments": sigma, "weights": block.first.weight}[what] += 0.01
        block(x, sigma)


@pytest.mark.parametrize("what", ["image", "arguments", "weights"])
def test_debug_mode_compares_values(pool: WorkerPool, what: str) -> None:
    outcomes = pool.run(values_that_disagree, what, context={"debug": True}, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, f"ranks disagree on the sum.*{what}.*rank 1")
