"""Copies of a distributed fidelity, what it says when pickled, and the state it has (case 22)."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from deepinv.optim import DataFidelity
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from deepinv.sampling import DPSDataFidelity

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.fidelity.test_sampling import Smooth
from tests.harness import WorkerPool, assert_close
from tests.physics.stacks import image, linear_operators


def copies(ctx: DistributedContext) -> None:
    ours = distribute(linear_operators(3), ctx)
    x, y = image(0), ours.A(image(1))
    for source in (
        L2(sigma=0.5),
        [L2(sigma=0.5), L2(), L2()],
        StackedPhysicsDataFidelity([L2()] * 3),
    ):
        block = distribute(source, ctx)
        twin = copy.deepcopy(block)
        assert type(twin) is type(block)
        assert twin.ctx is ctx
        assert_close(twin.grad(x, y, ours), block.grad(x, y, ours), 0.0)
        assert_close(copy.copy(block).fn(x, y, ours), block.fn(x, y, ours), 0.0)
        if isinstance(source, DataFidelity):
            assert list(block.state_dict()) == list(source.state_dict())
        with pytest.raises(TypeError, match=r"cannot be pickled.*state_dict\(\)"):
            pickle.dumps(block)
    assert distribute(block, ctx) is block


@pytest.mark.parametrize("world_size", (1, 3))
def test_copies(pool: WorkerPool, world_size: int) -> None:
    pool.run(copies, world_size=world_size)


def state(ctx: DistributedContext) -> None:
    """A checkpoint goes back and forth; a copy's network is another one."""
    term = DPSDataFidelity(Smooth())
    block = distribute(term, ctx)
    keys = list(DPSDataFidelity(Smooth()).state_dict())
    assert list(block.state_dict()) == keys
    assert keys
    block.load_state_dict(DPSDataFidelity(Smooth(seed=4)).state_dict())
    assert_close(term.state_dict(), DPSDataFidelity(Smooth(seed=4)).state_dict(), 0.0)
    twin = copy.deepcopy(block)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert all(p.abs().sum() > 0 for p in term.parameters())
    assert twin.denoiser is twin.terms.single.denoiser
    fresh = DPSDataFidelity(Smooth())
    fresh.load_state_dict(block.state_dict())
    assert block.eval().denoiser.training is False
    assert block.train().denoiser.training is True
    block.to(torch.float64)
    assert next(term.parameters()).dtype == torch.float64


@pytest.mark.parametrize("world_size", (1, 2))
def test_state(pool: WorkerPool, world_size: int) -> None:
    pool.run(state, world_size=world_size)


def told(ctx: DistributedContext) -> str:
    return repr(distribute(L2(), ctx)) + distribute([L2(), L2()], ctx).describe()


def test_description(pool: WorkerPool) -> None:
    for text in pool.run(told, world_size=2):
        assert "fidelity L2" in text
