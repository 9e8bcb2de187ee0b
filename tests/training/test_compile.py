"""A compiled network in training: what it is on the whole image, compiled or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from torch import nn

from shardinv import distribute, undistribute
from shardinv.context import DistributedContext
from tests.harness import WorkerPool, assert_close, assert_same_on_every_rank
from tests.physics.stacks import image, quiet, random_like
from tests.training.test_unrolled import EACH, TILES, Residual, blur, leaves, outcome, x_like

STEPS = {**EACH, "trainable_params": ["stepsize"]}


def network() -> Residual:
    torch.manual_seed(5)
    return Residual(2)


def compiled(way: str, backend: str) -> nn.Module:
    net = network()
    if way == "in place":
        net.compile(backend=backend)
        return net
    result: Any = torch.compile(net, backend=backend)
    return result


def compare(ctx: DistributedContext, backend: str) -> list[Any]:
    physics, x = blur(), image(0)
    with quiet():
        ours = distribute(blur(), ctx)
    y = random_like(physics.A(x))
    reference = PGD(L2(), PnP(network()), **STEPS).double()
    theirs = outcome(reference, leaves(y), physics, x)
    found = []
    for way in ("in place", "wrapped"):
        for sharded in (False, True):
            net = compiled(way, backend)
            model = PGD(L2(), PnP(net), **STEPS).double()
            distribute(model, ctx, **TILES)
            data = leaves(y, ctx) if sharded else leaves(y)
            torch._dynamo.reset()  # what is cached is not compiled again
            torch._dynamo.utils.counters.clear()
            mine = outcome(model, data, ours, x_like(x, ctx, sharded))
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, way
            mine["parameters"] = {
                name.replace("_orig_mod.", ""): slope for name, slope in mine["parameters"].items()
            }
            assert_close(mine, theirs, 1e-9, f"{way}, sharded: {sharded}")
            assert undistribute(model).prior[0].denoiser is net
            found.append(mine)
    return found


@pytest.mark.parametrize(("world_size", "backend"), [(1, "eager"), (2, "aot_eager")])
def test_gradients(pool: WorkerPool, world_size: int, backend: str) -> None:
    assert_same_on_every_rank(pool.run(compare, backend, world_size=world_size))
