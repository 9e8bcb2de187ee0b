"""Losses of ``deepinv.loss`` on one measurement: value and gradient of the undistributed loss.

Ranks, and the generators of the losses, are seeded differently: rank 0's draws count. Each loss is
called twice, so that it draws again. Losses of stacks are in ``test_losses``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.loss import (
    AugmentConsistencyLoss,
    EILoss,
    EquivariantSplittingLoss,
    Loss,
    MCLoss,
    MOEILoss,
    Neighbor2Neighbor,
    R2RLoss,
    RandomLossScheduler,
    ScoreLoss,
    SplittingLoss,
    SupLoss,
    SureGaussianLoss,
    SurePGLoss,
    SurePoissonLoss,
    TVLoss,
)
from deepinv.loss.metric import MAE
from deepinv.physics import GammaNoise, GaussianNoise, Physics, PoissonNoise
from deepinv.physics.generator import BernoulliSplittingMaskGenerator
from deepinv.transform import Reflect, Rotate, Shift
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from shardinv.exchange import DisagreementError
from tests.harness import WorkerPool, assert_close
from tests.physics.space.operators import draw, quiet
from tests.training.loss_cases import (
    SHAPE,
    SPATIAL,
    Reconstruction,
    blur,
    generator,
    inpainting,
    measured,
    over_ranks,
    steps,
)

TIGHT = 1e-9
Make = Callable[[int], Loss]


def masks(seed: int) -> BernoulliSplittingMaskGenerator:
    return BernoulliSplittingMaskGenerator((1, *SPATIAL), 0.8, rng=generator(seed))


def noisy() -> Physics:
    physics = inpainting()
    physics.noise_model = GaussianNoise(0.1, rng=generator(77))
    return physics


class Roll(nn.Module):
    """A transform that is not DeepInverse's."""

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(int(torch.randint(1, 9, (1,))), -1) * torch.rand(1, dtype=x.dtype)


def ei(transform: Any, **options: Any) -> EILoss:
    return EILoss(transform, **{"apply_noise": False, **options})


LOSSES: dict[str, Make] = {
    "supervised": lambda s: SupLoss(),
    "total variation": lambda s: TVLoss(0.3),
    "consistency": lambda s: MCLoss(),
    "consistency, absolute": lambda s: MCLoss(MAE()),
    "shift": lambda s: ei(Shift(rng=generator(s))),
    "reflect": lambda s: ei(Reflect(rng=generator(s), n_trans=2), no_grad=True),
    "rotate by 90": lambda s: ei(Rotate(multiples=90, rng=generator(s + 1), n_trans=2)),
    "rotate": lambda s: ei(Rotate(interpolation_mode="bilinear", rng=generator(s))),
    "shift, then rotate": lambda s: ei(
        Shift(rng=generator(s)) * Rotate(multiples=90, rng=generator(s))
    ),
    "shift or reflect": lambda s: ei(Shift(rng=generator(s)) | Reflect(rng=generator(s))),
    "a transform of one's own": lambda s: ei(Roll()),
    "a function": lambda s: ei(Roll().forward),
    "robust equivariance": lambda s: ei(Shift(rng=generator(s)), apply_noise=True),
    "several operators": lambda s: MOEILoss(
        Shift(rng=generator(s)), physics_generator=masks(s), apply_noise=False, rng=generator(s)
    ),
    "augmentation": lambda s: AugmentConsistencyLoss(T_e=Shift(rng=generator(s)), no_grad=False),
    "SURE": lambda s: SureGaussianLoss(0.1, rng=generator(s)),
    "SURE, projected": lambda s: SureGaussianLoss(0.1, B="A_dagger", rng=generator(s)),
    "UNSURE": lambda s: SureGaussianLoss(0.1, unsure=True, step_size=0.1, rng=generator(s)),
    "SURE, Poisson": lambda s: SurePoissonLoss(0.1, rng=generator(s)),
    "SURE, both": lambda s: SurePGLoss(0.1, 0.1, second_derivative=True, rng=generator(s)),
    "SURE, default generator": lambda s: SureGaussianLoss(0.1),
    "splitting": lambda s: SplittingLoss(split_ratio=0.7, eval_n_samples=2),
    "splitting, output": lambda s: SplittingLoss(
        mask_generator=masks(s), eval_n_samples=2, eval_split_output=True
    ),
    "equivariant splitting": lambda s: EquivariantSplittingLoss(
        mask_generator=masks(s), transform=Reflect(rng=generator(s)), eval_n_samples=2
    ),
    "neighbours": lambda s: Neighbor2Neighbor(),
    "re-corruption": lambda s: R2RLoss(eval_n_samples=2),  # with the operator's noise
    "re-corruption, Poisson": lambda s: R2RLoss(noise_model=PoissonNoise(0.1), eval_n_samples=2),
    "re-corruption, Gamma": lambda s: R2RLoss(noise_model=GammaNoise(2.0), eval_n_samples=2),
    "score": lambda s: ScoreLoss(noise_model=GaussianNoise(0.1)),
    "one of them": lambda s: RandomLossScheduler(
        MCLoss(), TVLoss(), SureGaussianLoss(0.1, rng=generator(s + 1)), generator=generator(s)
    ),
}

BY_POSITION = ("SURE, default generator", "re-corruption", "score")
"""Without a generator, sharded tensors are drawn by position: as on one rank that holds all."""

OPERATORS: dict[str, Callable[[], Physics]] = {
    "neighbours": lambda: blur(2),  # of any size
    "robust equivariance": noisy,
    "re-corruption": noisy,
}


def data(name: str) -> tuple[Physics, Tensor, Tensor]:
    physics = OPERATORS.get(name, inpainting)()
    return physics, measured(physics), draw(*SHAPE, seed=4).sigmoid()


def undistributed(name: str) -> list[Tensor]:
    physics, y, x = data(name)
    model = Reconstruction()
    torch.manual_seed(5)
    return steps(LOSSES[name](7), model, physics, y, x)


def over_the_ranks(ctx: DistributedContext, layout: str, names: tuple[str, ...]) -> Any:
    found = {}
    with quiet():
        for name in names:
            physics, y, x = data(name)
            ours, model = distribute(physics, ctx), over_ranks(ctx)
            if layout == "sharded":
                y, x = ctx.shard(y), ctx.shard(x)
            loss = distribute(LOSSES[name](7 + ctx.rank), ctx)
            assert distribute(loss, ctx) is loss
            torch.manual_seed(5 + ctx.rank)
            found[name] = steps(loss, model, ours, y, x)
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Tensor]]:
    with quiet():
        return {name: undistributed(name) for name in LOSSES}


@pytest.fixture(scope="module")
def by_position(pool: WorkerPool) -> dict[str, list[Tensor]]:
    return pool.run(over_the_ranks, "sharded", BY_POSITION, world_size=1)[0]


def test_draws_differ_from_call_to_call(expected: dict[str, list[Tensor]]) -> None:
    """Else the tests below would not show that generators go on alike."""
    fixed = ("supervised", "total variation", "consistency", "consistency, absolute")
    for name, (first, _, second, *_) in expected.items():
        assert torch.equal(first, second) == (name in fixed), name


@pytest.mark.parametrize("world_size", (1, 2, 3))
@pytest.mark.parametrize("layout", ("replicated", "sharded"))
def test_losses_of_one_measurement(
    pool: WorkerPool,
    expected: dict[str, list[Tensor]],
    by_position: dict[str, list[Tensor]],
    world_size: int,
    layout: str,
) -> None:
    wanted = {**expected, **(by_position if layout == "sharded" else {})}
    found = pool.run(over_the_ranks, layout, tuple(LOSSES), world_size=world_size)
    for rank, results in enumerate(found):
        for name, values in results.items():
            assert_close(values, wanted[name], TIGHT, f"{name}, rank {rank}, ")


# -- what is not distributed, or not alike ---------------------------------------------------------


class Drops(nn.Module):
    """A reconstruction that draws, and is not distributed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, y: Tensor, physics: Any, **_: Any) -> Tensor:
        kept = torch.nn.functional.dropout(self.scale * physics.A_adjoint(y), 0.2)
        return kept + 0.1 * torch.rand(1, dtype=y.dtype)


def own_physics(seed: int) -> Physics:
    physics = blur(2)
    physics.noise_model = GaussianNoise(0.1, rng=generator(seed))
    return physics


def plain_objects(ctx: DistributedContext) -> None:
    """Operators and models that every rank has for itself draw what rank 0's do."""
    y = measured(blur(2))

    def run(loss: Loss, seed: int) -> list[Tensor]:
        physics, model = own_physics(seed), Drops()
        torch.manual_seed(seed)
        x_net = 0.5 * y
        values = [loss(x_net=x_net, physics=physics, model=model) for _ in range(2)]
        return [*values, *torch.autograd.grad(values[1], model.parameters())]

    mine = run(distribute(EILoss(Reflect(rng=generator(9 - ctx.rank))), ctx), 3 + ctx.rank)
    assert_close(mine, run(EILoss(Reflect(rng=generator(9))), 3), TIGHT)


def mistakes(ctx: DistributedContext) -> None:
    alone = SureGaussianLoss(0.1, rng=generator(0) if ctx.rank else None)
    y = measured(blur(2))
    with pytest.raises(DisagreementError, match=r"\[0, 1\] of its own"):
        distribute(alone, ctx)(y=y, x_net=y, physics=blur(2), model=Reconstruction())
    with pytest.raises(TypeError, match=r"needs a Loss of deepinv.loss, such as SupLoss\(metric\)"):
        distribute(nn.MSELoss(), ctx, type_object="loss")
    elsewhere = distribute(MCLoss(), ctx)
    elsewhere.ctx = None
    with pytest.raises(ValueError, match="this MCLoss was distributed over other ranks"):
        distribute(elsewhere, ctx)


def test_plain_operators_and_models_draw_alike(pool: WorkerPool) -> None:
    pool.run(plain_objects, world_size=2)


def test_mistakes_are_named(pool: WorkerPool) -> None:
    pool.run(mistakes, world_size=2)
