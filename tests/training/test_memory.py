"""Recomputing iterations and tiles: the same gradients, fewer bytes, and a choice that fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.optim import ADMM, PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from deepinv.physics import Blur

from shardinv import DistributedContext, distribute
from shardinv.denoise.memory import SavedBytes, parse_memory
from shardinv.training.memory import MODES, Kept, MemoryPlan
from tests.denoise.networks import Conditioned
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_same_on_every_rank

TILES = {"patch_size": 8, "overlap": 2}
ITERATIONS = 4


def solver(kind: Any = PGD) -> Any:
    torch.manual_seed(0)
    return kind(
        data_fidelity=L2(), prior=PnP(Conditioned()), stepsize=0.5, sigma_denoiser=0.1,
        max_iter=ITERATIONS, unfold=True, trainable_params=["stepsize", "sigma_denoiser"],
    )  # fmt: skip


def step(ctx: DistributedContext, model: Any, layout: str) -> list[torch.Tensor]:
    """Gradients of a training step, and the bytes that it keeps on this rank."""
    kernel = torch.rand(1, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    physics = distribute(Blur(kernel / kernel.sum(), padding="circular"), ctx)
    x = torch.rand(1, 1, 24, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    truth = ctx.shard(x) if layout == "sharded" else x
    model.zero_grad()
    loss = (model(physics.A(truth), physics) - truth).square().sum()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def modes(ctx: DistributedContext, layout: str) -> list[torch.Tensor]:
    expected = step(ctx, distribute(solver(), ctx, **TILES, checkpoint="never"), layout)
    assert len(expected) > 4
    for mode in (*MODES[1:], "auto"):
        model = distribute(solver(), ctx, **TILES, checkpoint=mode, memory="1GB")
        for _ in range(1 + (mode == "auto")):  # the first step measures
            assert_close(step(ctx, model, layout), expected, 1e-11, mode)
    if ctx.world_size == 2:
        assert_close(
            step(ctx, distribute(solver(ADMM), ctx, **TILES, checkpoint="both"), layout),
            step(ctx, distribute(solver(ADMM), ctx, **TILES, checkpoint="never"), layout),
            1e-11,
            "ADMM",
        )
    return expected


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gradients_are_unchanged(pool: WorkerPool, world_size: int) -> None:
    """Six tiles; on four ranks with boxes of other shapes. Some ranks have more than others."""
    for layout in ("replicated", "sharded"):
        assert_same_on_every_rank(pool.run(modes, layout, world_size=world_size))


def idle_rank(ctx: DistributedContext) -> list[torch.Tensor]:
    """Two tiles on three ranks: one has none, and computes iterations anew with the others."""
    options = {"patch_size": (12, 16), "overlap": 2}
    found = [
        step(ctx, distribute(solver(), ctx, **options, checkpoint=mode), "replicated")
        for mode in ("never", "iterations", "both")
    ]
    assert_close(found[1], found[0], 1e-11)
    assert_close(found[2], found[0], 1e-11)
    return found


def test_rank_without_a_tile(pool: WorkerPool) -> None:
    assert_same_on_every_rank(pool.run(idle_rank, world_size=3))


def predicted(ctx: DistributedContext) -> None:
    """What a step keeps is what was predicted from the first iteration."""
    kept, peaks = {}, {}
    for mode in ("auto", "never", "iterations"):
        model = distribute(solver(), ctx, **TILES, checkpoint=mode)
        physics = distribute(Blur(torch.ones(1, 1, 3, 3, dtype=torch.float64) / 9), ctx)
        y = physics.A(torch.rand(1, 1, 24, 24, dtype=torch.float64))
        with SavedBytes(list(model.parameters())) as saved:
            model(y, physics)
        kept[mode] = saved.count
        for plan in model.fixed_point.iterator.checkpointing.plans.values():
            assert plan.mode == "never"
            own = plan.ranks[ctx.rank]
            peaks = {mode: own.peak(mode, ITERATIONS) - own.weights for mode in MODES}
    assert peaks["never"] == pytest.approx(kept["never"], rel=0.1)
    assert max(peaks[mode] for mode in MODES[1:]) < 0.7 * peaks["never"]
    assert kept["iterations"] < 0.1 * kept["never"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_prediction(pool: WorkerPool, world_size: int) -> None:
    pool.run(predicted, world_size=world_size)


def test_choice() -> None:
    kept = Kept(
        activations=100, batch=20, windows=10, rest=5, iterate=1, weights=6, budget=0
    )  # bytes

    def chosen(*budgets: int) -> MemoryPlan:
        ranks = [Kept(**{**kept.__dict__, "budget": budget}) for budget in budgets]
        return MemoryPlan.choose(10, ranks)

    assert chosen(0).peaks == {"never": 1056, "tiles": 176, "iterations": 121, "both": 51}
    assert [chosen(n).mode for n in (1056, 1055, 175, 120, 50)] == [*MODES, "both"]
    assert chosen(2000, 130).mode == "iterations"  # as the fullest rank needs
    assert "predicted peak 176 B of 1.05 kB a rank" in str(chosen(1055 - 5))
    assert "does not fit" in str(chosen(50))


@pytest.mark.parametrize(
    ("given", "count"),
    [(None, None), (5, 5), ("8GB", 8 * 10**9), ("1.5 MiB", 1572864), ("7k", 7000)],
)
def test_budget(given: Any, count: int | None) -> None:
    assert parse_memory(given) == count


@pytest.mark.parametrize("given", ["", "many", "-1GB", "0", 0, "1.2.3G"])
def test_budgets_that_make_no_sense(given: Any) -> None:
    with pytest.raises(ValueError, match="memory must be a number of bytes"):
        parse_memory(given)
