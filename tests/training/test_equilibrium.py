"""Deep equilibrium models: a fixed point in the backward pass, met by all ranks alike."""

from __future__ import annotations

from typing import Any

import pytest
from deepinv.optim import GD, HQS, PGD
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from deepinv.optim.optimizers import AndersonAccelerationConfig, DEQConfig
from deepinv.optim.prior import RED, PnP
from deepinv.physics import StackedLinearPhysics

from shardinv import DistributedDataFidelity, DistributedProcessing, distribute
from shardinv.context import DistributedContext
from tests.fidelity.test_solvers import Smooth
from tests.harness import WorkerPool, assert_close, assert_same_on_every_rank
from tests.physics.stacks import image, quiet, random_like
from tests.training.test_unrolled import TILES, blur, leaves, operators, outcome, x_like

TRAINED: dict[str, Any] = {
    "stepsize": 0.3, "g_param": 0.1, "max_iter": 4, "trainable_params": ["stepsize", "g_param"],
}  # fmt: skip
ACCELERATED = AndersonAccelerationConfig(history_size=3, beta=0.8)
BACKWARD = {"anderson_acceleration_backward": True, "history_size_backward": 3}

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "PGD": (PGD, PnP, {"DEQ": DEQConfig(max_iter_backward=5), "unfold": True}),
    "HQS": (HQS, PnP, {"DEQ": DEQConfig(max_iter_backward=4), "unfold": True}),
    "GD": (GD, RED, {"DEQ": DEQConfig(max_iter_backward=4)}),  # not said to be unfolded
    "no Jacobian": (PGD, PnP, {"DEQ": DEQConfig(jacobian_free=True)}),
    "accelerated forward": (
        PGD,
        PnP,
        {"DEQ": DEQConfig(max_iter_backward=4), "anderson_acceleration": ACCELERATED},
    ),
    "accelerated backward": (PGD, PnP, {"DEQ": DEQConfig(max_iter_backward=5, **BACKWARD)}),
    "until it converges": (PGD, PnP, {"DEQ": DEQConfig(max_iter_backward=200), "max_iter": 30}),
}


def compare(ctx: DistributedContext, tiles: dict[str, int], sharded: bool) -> list[Any]:
    x = image(0)
    physics: Any = blur() if sharded else StackedLinearPhysics(operators())
    with quiet():
        ours = distribute(blur() if sharded else operators(), ctx)
    y = random_like(physics.A(x))
    found: list[Any] = []
    for name, (make, prior, options) in CASES.items():
        listed = not sharded and make is not HQS
        fidelity = StackedPhysicsDataFidelity([L2(sigma=0.8)] * 3) if listed else L2(sigma=0.8)
        reference = make(fidelity, prior(Smooth()), **{**TRAINED, **options}).double()
        model = make(L2(sigma=0.8), prior(Smooth()), **{**TRAINED, **options}).double()
        # What is computed anew is so in each iteration of the backward pass.
        anew = {"checkpoint": "both"} if name == "PGD" else {}
        distribute(model, ctx, **tiles, **anew)
        assert isinstance(model.data_fidelity[0], DistributedDataFidelity)
        assert isinstance(model.prior[0].denoiser, DistributedProcessing)
        theirs = outcome(reference, leaves(y), physics, x)
        ctx.ledger.reset()
        data = leaves(y, ctx) if sharded else leaves(y)
        mine = outcome(model, data, ours, x_like(x, ctx, sharded))
        assert_close(mine, theirs, 1e-9, name)
        # The iterations in the backward pass stop together: the ranks have sent as often.
        found.append([mine, ctx.ledger.calls])
        if name == "until it converges" and ctx.world_size > 1:
            backward = [e.calls for e in ctx.ledger.entries() if e.block == "denoiser (backward)"]
            assert 10 < max(backward) < 200, backward
    return found


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_gradients(pool: WorkerPool, world_size: int) -> None:
    for sharded in (False, True):
        tiles = TILES if world_size != 3 else {}  # one tile: two ranks have none
        assert_same_on_every_rank(pool.run(compare, tiles, sharded, world_size=world_size))
