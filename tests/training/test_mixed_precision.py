"""Training in mixed precision: autocast around a step, and a scaler that skips together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from deepinv.optim.prior import PnP
from deepinv.physics import StackedLinearPhysics

from shardinv import distribute
from shardinv.context import DistributedContext
from shardinv.tensor import ShardedTensor
from tests.harness import WorkerPool, assert_close, assert_same_on_every_rank
from tests.physics.stacks import Dense, image, quiet, random_like
from tests.training.test_unrolled import TILES, Residual, blur, x_like

STEPS: dict[str, Any] = {"stepsize": [0.3, 0.4], "max_iter": 2, "unfold": True}


def solver(fidelity: Any = None) -> PGD:
    torch.manual_seed(3)
    prior = PnP(Residual(2, torch.float32))
    return PGD(fidelity or L2(), prior, trainable_params=["stepsize"], **STEPS)


def steps(model: PGD, y: Any, physics: Any, target: Any, overflow: bool) -> dict[str, Any]:
    """Two steps; in the second the loss may overflow, and the scaler has to leave it out."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scales, slopes = [], []
    for number in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = model(y, physics)
            loss = (x - target).square().sum()
            if overflow and number == 1:
                loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        slopes.append({name: p.grad.clone() for name, p in model.named_parameters()})
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    whole = x.full_tensor() if isinstance(x, ShardedTensor) else x
    return {
        "output": whole.detach(),
        "gradients": slopes[: 1 if overflow else 2],
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
        "scales": scales,
    }


def matrices() -> list[Any]:
    return [Dense(25, seed=1, dtype=torch.float32), Dense(20, seed=2, dtype=torch.float32)]


def dealt(ctx: DistributedContext, overflow: bool) -> dict[str, Any]:
    """Operators on other ranks, one of which may have none."""
    physics, ours = StackedLinearPhysics(matrices()), distribute(matrices(), ctx)
    x = image(0, dtype=torch.float32)
    y = random_like(physics.A(x))
    reference = solver(StackedPhysicsDataFidelity([L2(), L2()]))
    # Far away, so that the gradient of a step size is no small difference of large numbers; still
    # the reference itself is up to a twentieth away from its values in single precision.
    theirs = steps(reference, y, physics, -2 * x, overflow)
    mine = steps(distribute(solver(), ctx, **TILES), y, ours, -2 * x, overflow)
    assert mine.pop("scales") == theirs.pop("scales")
    assert_close(mine, theirs, 8e-2, "dealt operators")
    return mine


def compare(ctx: DistributedContext, overflow: bool) -> list[Any]:
    with quiet():
        physics, ours = blur().float(), distribute(blur().float(), ctx)
    x = image(0, dtype=torch.float32)
    y = random_like(physics.A(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert solver().prior[0].denoiser.net.in_conv(x).dtype == torch.bfloat16
    theirs = steps(solver(), y, physics, x, overflow)
    assert theirs["scales"] == ([128.0, 64.0] if overflow else [128.0, 256.0])
    found = []
    for sharded in (False, True):
        for recompute in ("never", "always"):
            model = distribute(solver(), ctx, checkpoint_batches=recompute, **TILES)
            target = x_like(x, ctx, sharded)
            mine = steps(model, x_like(y, ctx, sharded), ours, target, overflow)
            case = f"sharded: {sharded}, checkpoint: {recompute}"
            assert mine.pop("scales") == theirs["scales"], case
            expected = {name: theirs[name] for name in mine}
            assert_close(mine, expected, 2e-2, case)
            found.append(mine)
        assert_close(found[-1], found[-2], 1e-6, "with and without checkpoints")
    return [*found, dealt(ctx, overflow)]


@pytest.mark.parametrize(("world_size", "overflow"), [(1, False), (2, True), (3, False)])
def test_scaled_steps(pool: WorkerPool, world_size: int, overflow: bool) -> None:
    assert_same_on_every_rank(pool.run(compare, overflow, world_size=world_size))
