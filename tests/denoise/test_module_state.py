"""A distributed network is the network: its weights, mode, keys, attributes; copies and pickles."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from deepinv.models import Denoiser
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from shardinv.denoise import DistributedProcessing
from tests.denoise.networks import Conditioned, ffdnet
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_same_on_every_rank


class WithBuffers(nn.Module):
    """Weights, a buffer of its own type, one that is not saved, a submodule, an attribute."""

    kind = "example"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2))
        self.scale = nn.Parameter(torch.rand(2, 1, 1))
        self.register_buffer("count", torch.randint(10, (3,)))
        self.register_buffer("shift", torch.rand(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale + self.shift + self.count.sum()

    def twice(self, x: Tensor) -> Tensor:
        return 2 * self(x)


def different_weights(ctx: DistributedContext) -> list[Tensor]:
    torch.manual_seed(ctx.rank)
    network = WithBuffers()
    own = [value.clone() for value in network.state_dict().values()]
    block = distribute(network, ctx, patch_size=8, overlap=1)
    given = [*block.state_dict().values(), block.shift]
    if ctx.rank == 0:
        assert_close(given[:-1], own, 0.0)
    return [value.double() for value in given]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_weights_are_those_of_rank_0(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(different_weights, world_size=world_size))


def checkpoints(ctx: DistributedContext) -> None:
    network = WithBuffers()
    keys = list(network.state_dict())
    block = distribute(network, ctx, patch_size=8, overlap=1)
    assert isinstance(block, Denoiser)
    assert list(block.state_dict()) == keys
    assert [name for name, _ in block.named_parameters()] == [
        name for name, _ in network.named_parameters()
    ]
    assert [name for name, _ in block.named_modules()][1:] == [
        name for name, _ in network.named_modules()
    ][1:]

    # From many processes to one, and back.
    single = WithBuffers()
    single.load_state_dict(block.state_dict())
    assert_close(single.scale.detach(), network.scale.detach(), 0.0)
    other = {key: value + 1 for key, value in single.state_dict().items()}
    assert str(block.load_state_dict(other)) == "<All keys matched successfully>"
    assert_close(dict(network.state_dict()), other, 0.0)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict.*scale"):
        block.load_state_dict({key: value for key, value in other.items() if key != "scale"})


@pytest.mark.parametrize("world_size", [1, 2])
def test_checkpoints_go_both_ways(pool: WorkerPool, world_size: int) -> None:
    pool.run(checkpoints, world_size=world_size)


def mode_type_and_attributes(ctx: DistributedContext) -> None:
    network = WithBuffers().eval()
    block = distribute(network, ctx, patch_size=8, overlap=1)
    assert not block.training
    assert block.train() is block
    assert network.training
    assert network.layers[1].training
    assert block.eval() is block
    assert not network.training
    assert not network.layers[1].training

    assert block.to(torch.float64) is block
    assert network.scale.dtype == torch.float64
    assert network.shift.dtype == torch.float64
    x = torch.rand(1, 1, 20, 12, dtype=torch.float64)
    with torch.no_grad():
        assert_close(block(x), network(x), 1e-12)
        assert block.kind == "example"
        assert block.layers is network.layers
        assert_close(block.twice(x), 2 * network(x), 1e-12)
    with pytest.raises(AttributeError, match="absent"):
        _ = block.absent
    block.layers = nn.Sequential(nn.Conv2d(1, 2, 1, dtype=torch.float64))
    with torch.no_grad():
        assert_close(block(x), network(x), 1e-12, "after a layer was replaced")
    block.scale.data.fill_(3.0)
    assert float(network.scale.detach().mean()) == 3.0
    again = distribute(block, ctx, patch_size=4)
    assert again is block
    converted = distribute(WithBuffers(), ctx, patch_size=8, overlap=1, dtype=torch.float64)
    assert converted.scale.dtype == torch.float64
    assert converted.count.dtype == torch.int64


@pytest.mark.parametrize("world_size", [1, 2])
def test_mode_type_and_attributes(pool: WorkerPool, world_size: int) -> None:
    pool.run(mode_type_and_attributes, world_size=world_size)


def trained_in_place(ctx: DistributedContext) -> list[Tensor]:
    torch.manual_seed(0)
    network = Conditioned()
    reference = deepcopy(network)
    block = distribute(network, ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 20, 16, dtype=torch.float64)
    for module in (block, reference):
        optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(3):
            optimiser.zero_grad()
            (module(x, 0.1) - x).square().mean().backward()
            optimiser.step()
    assert_close(dict(block.state_dict()), dict(reference.state_dict()), 1e-9)
    return [value.clone() for value in block.state_dict().values()]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_optimisers_train_the_network(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(trained_in_place, world_size=world_size))


def copies(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    block = distribute(ffdnet(), ctx, patch_size=16, overlap=8)
    x = torch.rand(1, 1, 40, 24, dtype=torch.float64)
    with torch.no_grad():
        before = block(x, 0.1)
        twin = deepcopy(block)
        assert isinstance(twin, DistributedProcessing)
        assert twin.ctx is ctx
        assert twin.processor is not block.processor
        assert list(twin.state_dict()) == list(block.state_dict())
        for one, other in zip(twin.parameters(), twin.processor.parameters(), strict=True):
            assert one is other
        for parameter in twin.parameters():
            parameter.zero_()
        assert_close(block(x, 0.1), before, 0.0, "the original")
        assert_close(twin(x, 0.1), torch.zeros_like(x), 0.0, "the copy")
        twin.load_state_dict(block.state_dict())
        assert_close(twin(x, 0.1), before, 0.0, "the copy with the same weights")
        nested = deepcopy(nn.ModuleDict({"denoiser": block}))
        assert_close(nested["denoiser"](x, 0.1), before, 0.0, "inside another module")
    with pytest.raises(TypeError, match=r"cannot be pickled.*state_dict\(\)"):
        pickle.dumps(block)


@pytest.mark.parametrize("world_size", [1, 2])
def test_copies_are_independent_and_pickles_say_what_to_do(
    pool: WorkerPool, world_size: int
) -> None:
    pool.run(copies, world_size=world_size)
