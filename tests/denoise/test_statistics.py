"""Dropout and batch normalisation in training: on tiles, and on any number of ranks alike."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from tests.harness import WorkerPool, assert_close, assert_same_on_every_rank


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    first, last = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 1, 3, padding=1)
    return nn.Sequential(first, *layers, last).double().train()


def train(ctx: DistributedContext, kind: str, checkpoint: str) -> list[Tensor]:
    """Two calls on seven tiles: outputs, gradients and what the network remembers."""
    layers = {"batch": [nn.BatchNorm2d(3)], "dropout": [nn.Dropout(0.5), nn.Dropout2d(0.3)]}[kind]
    net = network(*layers)
    options = {"patch_size": (6, 9), "overlap": 1, "max_batch_size": 4}
    block = distribute(net, ctx, **options, checkpoint_batches=checkpoint, type_object="denoiser")
    torch.manual_seed(7 + ctx.rank)  # rank 0 decides
    x = torch.sin(torch.arange(42 * 9.0, dtype=torch.float64)).view(1, 1, 42, 9).requires_grad_()
    out = block(block(x))
    out.square().sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in net.parameters()), *net.buffers()]


def test_any_number_of_ranks(pool: WorkerPool) -> None:
    for kind in ("batch", "dropout"):
        alone = pool.run(train, kind, "never", world_size=1)[0]
        for world_size, checkpoint in ((2, "never"), (3, "always"), (4, "auto")):
            found = pool.run(train, kind, checkpoint, world_size=world_size)
            assert_same_on_every_rank(found)
            assert_close(found[0], alone, 1e-12, f"{kind} on {world_size} ranks")


def one_tile(ctx: DistributedContext) -> None:
    """Of an image of one tile, statistics are the undistributed network's."""
    net = network(nn.BatchNorm2d(3))
    reference = deepcopy(net)
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    block = distribute(net, ctx, patch_size=8, overlap=0)
    for _ in range(2):
        assert_close(block(x), reference(x), 1e-12)
    assert_close(dict(net.named_buffers()), dict(reference.named_buffers()), 1e-12)
    net.eval()
    before = [buffer.clone() for buffer in net.buffers()]
    block(x)
    assert_close(list(net.buffers()), before, 0.0, "evaluation remembers nothing")


def test_one_tile_is_the_whole_network(pool: WorkerPool) -> None:
    pool.run(one_tile, world_size=2)
