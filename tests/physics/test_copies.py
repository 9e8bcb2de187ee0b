"""Copies of a distributed stack, what it says when pickled, and the state it has (case 22)."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from deepinv.physics import StackedLinearPhysics, StackedPhysics

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import WORLD_SIZES, WorkerPool, assert_close
from tests.physics.stacks import SUMMATION, image, linear_operators, nonlinear_operators


def copies(ctx: DistributedContext) -> None:
    for source in (
        StackedLinearPhysics(linear_operators(5)),
        StackedPhysics(nonlinear_operators(3)),
    ):
        ours = distribute(source, ctx)
        assert list(ours.state_dict()) == list(source.state_dict())
        x = image(0)
        expected = source.A(x)
        twin = copy.deepcopy(ours)
        assert type(twin) is type(ours)
        assert twin.ctx is ctx
        assert_close(twin.A(x), expected, SUMMATION)
        for _, operator in twin.operators.local_items():
            for buffer in operator.buffers():
                buffer.zero_()
        assert_close(ours.A(x), expected, SUMMATION, "the original after its copy was changed")
        shallow = copy.copy(ours)
        assert_close(shallow.A(x), expected, SUMMATION)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(ours)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_copies(pool: WorkerPool, world_size: int) -> None:
    pool.run(copies, world_size=world_size)


def clone(ctx: DistributedContext) -> None:
    """DeepInverse's own way to copy an operator."""
    ours = distribute(linear_operators(3), ctx)
    assert_close(ours.clone().A(image(0)), ours.A(image(0)), 0.0)


def test_clone(pool: WorkerPool) -> None:
    pool.run(clone, world_size=2)


def moved(ctx: DistributedContext) -> None:
    ours = distribute(linear_operators(3), ctx)
    x = image(0)
    before = ours.A(x)
    assert ours.to(ctx.device) is ours
    assert ours.eval() is ours
    assert ours.train() is ours
    assert_close(ours.A(x), before, 0.0)
    assert isinstance(ours, torch.nn.Module)


def test_module_methods(pool: WorkerPool) -> None:
    pool.run(moved, world_size=2)
