"""Gradients through tiles are the undistributed ones on every rank, of any order, by any route."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from deepinv.models import GSDRUNet
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from tests.denoise.networks import Blur, Conditioned, Strided, drunet, ffdnet
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_same_on_every_rank,
    compare_with_reference,
    gradients,
)

ROUNDING = 1e-11


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """A network to distribute, and a copy with weights of its own to compare with."""
    torch.manual_seed(0)
    network = make()
    return network, deepcopy(network)


def with_arguments(module: nn.Module, arguments: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    return lambda image: module(image, **arguments)


def all_gradients(ctx: DistributedContext, checkpoint: str) -> None:
    cases: dict[str, tuple[Any, tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
        "FFDNet": (ffdnet, (1, 1, 40, 24), {"sigma": 0.1}, {"patch_size": 16, "overlap": 8}),
        "strided": (Strided, (1, 1, 40, 24), {}, {"patch_size": 16, "overlap": 10}),
        "two tiles": (Blur, (2, 1, 20, 8), {}, {"patch_size": 10, "overlap": 1}),
        "one tile": (Blur, (1, 1, 6, 8), {}, {"patch_size": 10, "overlap": 1}),
        "more channels": (
            lambda: Conditioned(2, 3),
            (2, 2, 20, 18),
            {"sigma": 0.1},
            {"patch_size": 10, "overlap": 2, "max_batch_size": 2},
        ),
    }
    for name, (make, shape, arguments, options) in cases.items():
        network, reference = pair(make)
        block = distribute(
            network, ctx, **options, checkpoint_batches=checkpoint, type_object="denoiser"
        )
        x = torch.rand(shape, dtype=torch.float64)
        try:
            compare_with_reference(
                with_arguments(block, arguments),
                with_arguments(reference, arguments),
                x,
                list(block.parameters()),
                list(reference.parameters()),
                rtol=ROUNDING,
            )
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("checkpoint", ["never", "always", "auto"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_image_and_weights(pool: WorkerPool, world_size: int, checkpoint: str) -> None:
    pool.run(all_gradients, checkpoint, world_size=world_size)


def noise_level_gradients(ctx: DistributedContext) -> None:
    network, reference = pair(Conditioned)
    block = distribute(network, ctx, patch_size=10, overlap=2, max_batch_size=2)
    x = torch.rand(2, 1, 20, 16, dtype=torch.float64)
    for shape in [(), (2,), (2, 1, 1, 1), (1, 1, 1, 1), (2, 1, 20, 16), (1, 1, 20, 16)]:
        sigma = torch.rand(shape, dtype=torch.float64)
        errors = compare_with_reference(
            block,
            reference,
            (x, sigma),
            list(block.parameters()),
            list(reference.parameters()),
            rtol=ROUNDING,
        )
        assert "second order" in errors
        by_keyword = gradients(lambda image, level: block(image, sigma=level), (x, sigma))
        assert_close(by_keyword, gradients(reference, (x, sigma)), ROUNDING, f"keyword {shape}")
    # Only the noise level needs a gradient.
    network.requires_grad_(False)
    level = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    (mine,) = torch.autograd.grad(block(x, level).square().sum(), level)
    (expected,) = torch.autograd.grad(reference(x, level).square().sum(), level)
    assert_close(mine, expected, ROUNDING, "noise level alone")


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_noise_level(pool: WorkerPool, world_size: int) -> None:
    pool.run(noise_level_gradients, world_size=world_size)


def inside_a_graph(ctx: DistributedContext) -> list[Tensor]:
    """The block amid other modules: what is before and after it is replicated."""
    torch.manual_seed(0)
    before = nn.Conv2d(1, 1, 3, padding=1).double()
    after = nn.Conv2d(1, 1, 3, padding=1).double()
    network, reference = pair(Conditioned)
    block = distribute(network, ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 20, 16, dtype=torch.float64)
    sigma = torch.tensor(0.3, dtype=torch.float64)

    def program(denoiser: nn.Module) -> Callable[[Tensor], Tensor]:
        def run(image: Tensor) -> Tensor:
            image = before(image)
            for _ in range(2):
                image = image - 0.5 * after(denoiser(image, sigma))
            return image

        return run

    outside = [*before.parameters(), *after.parameters()]
    compare_with_reference(
        program(block),
        program(reference),
        x,
        [*outside, *block.parameters()],
        [*outside, *reference.parameters()],
        rtol=ROUNDING,
    )
    return gradients(program(block), x, outside)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_modules_before_and_after(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(inside_a_graph, world_size=world_size))


def repeated_backward(ctx: DistributedContext) -> None:
    network, reference = pair(Conditioned)
    block = distribute(network, ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 20, 16, dtype=torch.float64)

    def accumulated(denoiser: nn.Module) -> list[Tensor]:
        image = x.clone().requires_grad_()
        result = denoiser(image, 0.1)
        result.square().sum().backward(retain_graph=True)
        result.sum().backward()  # the same graph again
        denoiser(image, 0.3).square().sum().backward()  # another, into the same leaves
        return [image.grad, *(p.grad for p in denoiser.parameters())]

    assert_close(accumulated(block), accumulated(reference), ROUNDING)
    for parameter in block.parameters():
        before = parameter.grad
        torch.autograd.grad(block(x, 0.1).sum(), list(block.parameters()))
        assert parameter.grad is before


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_several_backward_passes_accumulate(pool: WorkerPool, world_size: int) -> None:
    pool.run(repeated_backward, world_size=world_size)


def seen_through(view: Callable[[Tensor], Tensor], module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda leaf: module(view(leaf))


def odd_layouts(ctx: DistributedContext) -> None:
    network, reference = pair(Blur)
    block = distribute(network, ctx, patch_size=(10, 8), overlap=1)
    views: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
        "transposed": ((1, 1, 8, 20), lambda t: t.mT),
        "every second": ((1, 1, 40, 8), lambda t: t[:, :, ::2]),
        "expanded": ((1, 1, 20, 1), lambda t: t.expand(1, 1, 20, 8)),
        "flipped": ((1, 1, 20, 8), lambda t: t.flip(-1)),
        "channels last": ((2, 1, 20, 8), lambda t: t.to(memory_format=torch.channels_last)),
    }
    for name, (shape, view) in views.items():
        leaf = torch.rand(shape, dtype=torch.float64)
        mine, expected = (
            gradients(seen_through(view, module), leaf, list(module.parameters()))
            for module in (block, reference)
        )
        assert_close(mine, expected, ROUNDING, name)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_image_that_is_not_contiguous(pool: WorkerPool, world_size: int) -> None:
    # Two tiles: of three ranks one has none.
    pool.run(odd_layouts, world_size=world_size)


def some_weights_frozen(ctx: DistributedContext) -> None:
    network, reference = pair(Conditioned)
    for module in (network, reference):
        module.first.requires_grad_(False)
    block = distribute(network, ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 20, 16, dtype=torch.float64)
    for module in (block, reference):
        module(x, 0.1).square().sum().backward()
        assert module.first.weight.grad is None
    assert_close(block.last.weight.grad, reference.last.weight.grad, ROUNDING)
    block.requires_grad_(False)
    assert not block(x, 0.1).requires_grad


@pytest.mark.parametrize("world_size", [1, 3])
def test_frozen_weights(pool: WorkerPool, world_size: int) -> None:
    pool.run(some_weights_frozen, world_size=world_size)


def gradient_step_network(ctx: DistributedContext) -> None:
    """It differentiates inside its forward, also where nobody asked for a gradient."""
    torch.manual_seed(0)
    network = GSDRUNet(in_channels=1, out_channels=1, nb=1, nc=(2, 2, 2, 2)).eval()
    block = distribute(network, ctx, patch_size=32, overlap=32)
    x = torch.rand(1, 1, 64, 32)  # the window of each of the two tiles is the image: exact
    expected = network(x.clone(), 0.1).detach()
    with torch.no_grad():
        assert_close(block(x, 0.1), expected, 1e-5)
    assert block(x, 0.1).requires_grad
    network.requires_grad_(False)
    result = block(x, 0.1)
    assert not result.requires_grad
    assert not x.requires_grad
    assert_close(result, expected, 1e-5)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_network_that_differentiates_inside(pool: WorkerPool, world_size: int) -> None:
    pool.run(gradient_step_network, world_size=world_size)


def parts_sum_up(ctx: DistributedContext) -> list[Tensor]:
    network, reference = pair(Conditioned)
    block = distribute(network, ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 20, 16, dtype=torch.float64)
    with torch.no_grad():
        plain = block(x, 0.1, gather=False)
        total = ctx.all_reduce(plain.clone())
        assert_close(total, reference(x, 0.1), 1e-12, "without a gradient")
    leaf = x.clone().requires_grad_()
    part = block(leaf, 0.1, gather=False)
    assert_close(part.detach(), plain, 1e-12, "with a gradient")
    # A local part has a local cotangent: here each rank's own share of the loss.
    mine = torch.autograd.grad(part.square().sum(), [leaf, *block.parameters()])
    image = x.clone().requires_grad_()
    loss = reference(image, 0.1).square().sum()
    assert_close(mine, torch.autograd.grad(loss, [image, *reference.parameters()]), ROUNDING)
    return [plain]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_parts_without_a_gather(pool: WorkerPool, world_size: int) -> None:
    parts = [result[0] for result in pool.run(parts_sum_up, world_size=world_size)]
    owners = torch.stack([part != 0 for part in parts]).sum(0)
    assert int(owners.max()) == 1


def functional_transforms(ctx: DistributedContext) -> None:
    network, reference = pair(Conditioned)
    x = torch.rand(1, 1, 20, 8, dtype=torch.float64)
    v = torch.rand(1, 1, 20, 8, dtype=torch.float64)
    block = distribute(network, ctx, patch_size=(10, 8), overlap=2, checkpoint_batches="never")
    expected, pull = torch.func.vjp(lambda image: reference(image, 0.1), x)
    mine, mine_pull = torch.func.vjp(lambda image: block(image, 0.1), x)
    assert_close(mine, expected, ROUNDING, "value")
    assert_close(mine_pull(v)[0], pull(v)[0], ROUNDING, "vector-Jacobian product")
    gradient = torch.func.grad(lambda image: block(image, 0.1).square().sum())(x)
    wanted = torch.func.grad(lambda image: reference(image, 0.1).square().sum())(x)
    assert_close(gradient, wanted, ROUNDING, "torch.func.grad")

    # Torch cannot recompute activations inside these transforms, and says so.
    recomputing = distribute(network, ctx, patch_size=6, overlap=2, checkpoint_batches="always")
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.vjp(lambda image: recomputing(image, 0.1), x)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_functional_transforms(pool: WorkerPool, world_size: int) -> None:
    pool.run(functional_transforms, world_size=world_size)


def dropout_is_drawn_again(ctx: DistributedContext) -> None:
    """Recomputed activations draw the numbers of the first time, or the gradient is another's."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(2, 1, 1))
    network.double().train()
    x = torch.rand(1, 1, 20, 8, dtype=torch.float64)
    found = []
    for mode in ("never", "always"):
        block = distribute(network, ctx, patch_size=10, overlap=1, checkpoint_batches=mode)
        torch.manual_seed(3)
        found.append(gradients(block, x, list(block.parameters())))
    assert_close(found[1], found[0], ROUNDING)


@pytest.mark.parametrize("world_size", [1, 2])
def test_checkpoints_of_random_layers(pool: WorkerPool, world_size: int) -> None:
    pool.run(dropout_is_drawn_again, world_size=world_size)


def many_layers(ctx: DistributedContext) -> None:
    network, reference = pair(drunet)
    block = distribute(network, ctx, patch_size=64, overlap=8)
    x = torch.rand(1, 1, 40, 40, dtype=torch.float64)
    compare_with_reference(
        lambda image: block(image, 0.1),
        lambda image: reference(image, 0.1),
        x,
        list(block.parameters()),
        list(reference.parameters()),
        rtol=1e-9,
        second_order=False,
    )


def test_single_tile_of_a_deep_network(pool: WorkerPool) -> None:
    pool.run(many_layers, world_size=2)
