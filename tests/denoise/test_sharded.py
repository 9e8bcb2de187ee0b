"""Networks on tiles of a sharded image: what they give on the whole one, from halos alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shardinv import DistributedContext, distribute
from shardinv.tensor import ShardedTensor
from tests.denoise.networks import Conditioned, dncnn, ffdnet
from tests.harness import WORLD_SIZES, WorkerPool, assert_close
from tests.harness.checks import probe_loss

ROUNDING = 1e-12


def meshes(ranks: int, ndim: int) -> list[Any]:
    found: list[Any] = [None, (ranks,)]
    if ndim == 2:
        found.append((1, ranks))
    return found


def compare_layouts(ctx: DistributedContext) -> None:
    """Output, gradients of the input and the weights, of both orders; values without a graph."""
    cases = [
        ("DnCNN, uneven", lambda: dncnn(3), (2, 1, 45, 37), {}, {"patch_size": 16, "overlap": 3}),
        ("FFDNet", ffdnet, (1, 1, 34, 26), {"sigma": 0.1}, {"patch_size": 12, "overlap": 4}),
        ("one tile", lambda: dncnn(3), (1, 1, 9, 5), {}, {"overlap": 3}),
        (
            "fewer rows than ranks",
            lambda: dncnn(3),
            (1, 1, 3, 31),
            {},
            {"patch_size": 8, "overlap": 2},
        ),
        (
            "other channels",
            lambda: Conditioned(1, 4),
            (1, 1, 20, 20),
            {"sigma": 0.2},
            {"patch_size": 11, "overlap": 2},
        ),
        (
            "volume",
            lambda: dncnn(3, dim=3),
            (1, 1, 9, 14, 11),
            {},
            {"patch_size": 6, "overlap": 2},
        ),
    ]
    for name, make, shape, arguments, options in cases:
        torch.manual_seed(0)
        network = make()
        denoiser = distribute(network, ctx, **options)
        x = torch.randn(shape, dtype=torch.float64)
        weights = list(network.parameters())
        plain = x.clone().requires_grad_()
        output = denoiser(plain, **arguments)
        wanted = torch.autograd.grad(probe_loss(output), [plain, *weights], create_graph=True)
        second = torch.autograd.grad(wanted[0].pow(2).sum() + wanted[1].pow(2).sum(), plain)[0]
        for mesh in meshes(ctx.world_size, len(shape) - 2):
            case = f"{name}, mesh {mesh}"
            sharded = ctx.shard(x, mesh).requires_grad_()
            found = denoiser(sharded, **arguments)
            assert isinstance(found, ShardedTensor)
            assert found.sharding is sharded.sharding
            assert_close(found.full_tensor(), output, ROUNDING, case)
            loss = probe_loss_of(found)
            grads = torch.autograd.grad(loss, [sharded, *weights], create_graph=True)
            ours = [grads[0].full_tensor(), *grads[1:]]
            assert_close(ours, list(wanted), 1e-11, f"gradients, {case}")
            again = torch.autograd.grad(grads[0].pow(2).sum() + grads[1].pow(2).sum(), sharded)[0]
            assert_close(again.full_tensor(), second, 1e-10, f"second order, {case}")
            with torch.no_grad():
                silent = denoiser(ctx.shard(x, mesh), **arguments)
            assert_close(silent.full_tensor(), output, ROUNDING, f"without a graph, {case}")


def probe_loss_of(x: ShardedTensor) -> Tensor:
    """The loss of the plain output, of the gathered one: the gather has its adjoint too."""
    return probe_loss(x.full_tensor())


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_both_layouts_agree(pool: WorkerPool, world_size: int) -> None:
    pool.run(compare_layouts, world_size=world_size)


def sharded_noise_map(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    network = Conditioned()
    denoiser = distribute(network, ctx, patch_size=8, overlap=2)
    x = torch.randn(2, 1, 21, 19, dtype=torch.float64)
    level = torch.rand(1, 1, 21, 19, dtype=torch.float64)
    wanted = denoiser(x, level.expand(2, 1, 21, 19))
    for given in (level, ctx.shard(level), torch.rand(2)):
        if given.ndim == 1:
            given = torch.tensor([0.1, 0.3], dtype=torch.float64)
            wanted = denoiser(x, given)
        assert_close(denoiser(ctx.shard(x), given).full_tensor(), wanted, ROUNDING)


@pytest.mark.parametrize("world_size", (1, 3))
def test_noise_levels_and_maps(pool: WorkerPool, world_size: int) -> None:
    pool.run(sharded_noise_map, world_size=world_size)


def bytes_against_prediction(ctx: DistributedContext, side: int) -> tuple[int, int, int]:
    denoiser = distribute(torch.nn.Identity(), ctx, patch_size=64, overlap=16)
    x = ctx.zeros((1, 3, side, side))
    with torch.no_grad():
        denoiser(x)
        ctx.ledger.reset()
        denoiser(x)
    halo, result = denoiser.schedule((side, side), x.sharding).pixels_sent[ctx.rank]
    assert {e.operation for e in ctx.ledger.entries()} <= {"halo", "realign"}
    return ctx.ledger.bytes_sent, 3 * 4 * (halo + result), ctx.ledger.calls


def test_halos_alone_are_sent(pool: WorkerPool) -> None:
    """In proportion to the side, so half as much of an image of twice the side."""
    shares = []
    for side in (256, 512):
        for sent, predicted, calls in pool.run(bytes_against_prediction, side, world_size=4):
            assert sent == predicted
            assert calls == 2
            # A quarter of the image has two borders, and a corner: its halo is 16 px wide.
            assert sent == 3 * 4 * (2 * 16 * side // 2 + 16 * 16)
        shares.append(sent / (3 * 4 * side * side))
    assert shares[1] < 0.52 * shares[0]
