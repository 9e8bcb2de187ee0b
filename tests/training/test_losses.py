"""Losses of ``deepinv.loss`` over the ranks: the undistributed value and gradients on every rank.

Ranks other than 0 seed their generators otherwise, the losses' own and torch's default one: the
draws are rank 0's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.loss import (
    EILoss,
    Loss,
    MCLoss,
    Neighbor2Neighbor,
    R2RLoss,
    SplittingLoss,
    StackedPhysicsLoss,
    SupLoss,
    SureGaussianLoss,
    SurePGLoss,
    SurePoissonLoss,
    TVLoss,
)
from deepinv.physics import Blur, GaussianNoise, StackedLinearPhysics
from deepinv.physics.generator import BernoulliSplittingMaskGenerator
from deepinv.transform import Reflect, Rotate, Shift
from deepinv.utils.tensorlist import TensorList
from torch import Tensor

from shardinv import DistributedContext, RemoteEntryError, distribute
from shardinv.exchange import DisagreementError
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_every_rank_raised
from tests.physics.space.operators import draw
from tests.training.loss_cases import (
    SHAPE,
    SPATIAL,
    Make,
    Reconstruction,
    blur,
    generator,
    inpainting,
    measured,
    over_ranks,
    steps,
)

LAYOUTS = ("replicated", "sharded")
SEED = 7


def noisy(seed: int) -> Blur:
    """A blur with noise from a generator of its own."""
    operator = blur(4)
    operator.noise_model = GaussianNoise(0.1, rng=generator(seed))
    return operator


def splitting(seed: int) -> SplittingLoss:
    masks = BernoulliSplittingMaskGenerator((1, *SPATIAL), split_ratio=0.7, rng=generator(seed))
    return SplittingLoss(mask_generator=masks, eval_n_samples=2)


def quarter_turns(seed: int) -> EILoss:
    turn = Rotate(multiples=90, interpolation_mode="nearest", rng=generator(seed))
    return EILoss(turn, apply_noise=False)


#: Losses of one operator: how they are made from a seed, and the operator.
SINGLE: dict[str, tuple[Make, Callable[[int], Any]]] = {
    "supervised": (lambda s: SupLoss(), lambda s: blur(4)),
    "total variation": (lambda s: TVLoss(), lambda s: blur(4)),
    "measurement consistency": (lambda s: MCLoss(), lambda s: blur(4)),
    "EI, quarter turns": (quarter_turns, lambda s: inpainting()),
    "EI, any angle": (
        lambda s: EILoss(Rotate(interpolation_mode="bilinear", rng=generator(s))),
        lambda s: inpainting(),
    ),
    "EI, shifts": (lambda s: EILoss(Shift(rng=generator(s))), lambda s: inpainting()),
    "EI, reflections": (lambda s: EILoss(Reflect(rng=generator(s))), lambda s: blur(4)),
    "EI, torch's generator": (lambda s: EILoss(Shift()), lambda s: blur(4)),
    "robust EI": (lambda s: EILoss(Shift(rng=generator(s)), apply_noise=True), noisy),
    "SURE, Gaussian": (lambda s: SureGaussianLoss(0.1, rng=generator(s)), lambda s: blur(4)),
    "SURE, Poisson": (lambda s: SurePoissonLoss(0.1, rng=generator(s)), lambda s: blur(4)),
    "SURE, both": (
        lambda s: SurePGLoss(0.1, 0.1, second_derivative=True, rng=generator(s)),
        lambda s: blur(4),
    ),
    "splitting": (splitting, lambda s: inpainting()),
    "splitting, torch's generator": (lambda s: SplittingLoss(), lambda s: inpainting()),
    "re-corruption": (
        lambda s: R2RLoss(noise_model=GaussianNoise(0.1, rng=generator(s))),
        lambda s: inpainting(),
    ),
    "neighbours": (lambda s: Neighbor2Neighbor(), lambda s: blur(4)),
}


#: Sharded noise from torch's own generator is drawn by position: the same for any number of ranks,
#: but not the undistributed program's.
BY_POSITION = {"re-corruption"}


def seeds(ctx: DistributedContext) -> int:
    """Of this rank; torch's generator has it too."""
    seed = SEED + 13 * ctx.rank
    torch.manual_seed(seed)
    return seed


def named(name: str, found: list[list[Tensor]], expected: list[list[Tensor]], to: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs, to, name)


def single(ctx: DistributedContext, layout: str) -> dict[str, list[Tensor]]:
    place: Callable[[Tensor], Tensor] = ctx.shard if layout == "sharded" else lambda t: t
    x, told = draw(*SHAPE, seed=1).sigmoid(), {}
    for name, (make, operator) in SINGLE.items():
        y = measured(operator(SEED))
        seed = seeds(ctx)
        loss, physics = distribute(make(seed), ctx), distribute(operator(SEED), ctx)
        found = steps(loss, over_ranks(ctx), physics, place(y), place(x))
        if layout == "replicated" or name not in BY_POSITION:
            torch.manual_seed(SEED)
            expected = steps(make(SEED), Reconstruction(), operator(SEED), y, x)
            named(name, found, expected, 1e-9)
        told[name] = found[0] + found[1]
    return told


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_operator(pool: WorkerPool, layout: str) -> None:
    (expected,) = pool.run(single, layout, world_size=1)
    for world_size in WORLD_SIZES[1:]:
        for found in pool.run(single, layout, world_size=world_size):
            for name in SINGLE:
                assert_close(found[name], expected[name], 1e-9, f"{name}, {world_size} ranks")


# -- stacks ----------------------------------------------------------------------------------------


def operators() -> list[Any]:
    return [blur(4), blur(5), blur(6)]


def each(make: Make) -> Make:
    return lambda s: StackedPhysicsLoss([make(s + number) for number in range(3)])


#: Losses of stacks: how they are made, and as what they are made undistributed, if they can be.
STACKED: dict[str, tuple[Make, Make | None]] = {
    "measurement consistency": (lambda s: MCLoss(), each(lambda s: MCLoss())),
    "EI": (quarter_turns, quarter_turns),
    "one for each": (each(lambda s: MCLoss()), each(lambda s: MCLoss())),
    "SURE for each": (
        each(lambda s: SureGaussianLoss(0.1, rng=generator(s))),
        each(lambda s: SureGaussianLoss(0.1, rng=generator(s))),
    ),
    "SURE, Gaussian": (lambda s: SureGaussianLoss(0.1, rng=generator(s)), None),
    "SURE, Poisson": (lambda s: SurePoissonLoss(0.1, rng=generator(s)), None),
    "SURE, both": (lambda s: SurePGLoss(0.1, 0.1, rng=generator(s)), None),
    "splitting": (splitting, None),
}


def stacked(ctx: DistributedContext, layout: str) -> dict[str, list[Tensor]]:
    """Case 21 of the list in ``tests/test_peer_cases.py``: losses on lists of measurements."""
    x, told = draw(*SHAPE, seed=1).sigmoid(), {}
    plain = StackedLinearPhysics(operators())
    y = measured(plain)
    for name, (make, undistributed) in STACKED.items():
        seed = seeds(ctx)
        strategy = "space" if layout == "sharded" else "operator"
        physics = distribute(operators(), ctx, type_object="linear_physics", strategy=strategy)
        given: Any = {"replicated": y, "owned": None, "sharded": None}[layout]
        if layout == "owned":
            given = physics.own(y)
        if layout == "sharded":
            given = TensorList([ctx.shard(entry) for entry in y])
        truth = ctx.shard(x) if layout == "sharded" else x
        try:
            found = steps(distribute(make(seed), ctx), over_ranks(ctx), physics, given, truth)
        except Exception as error:
            error.add_note(f"{name}, {layout}")
            raise
        if undistributed is not None:
            torch.manual_seed(SEED)
            expected = steps(undistributed(SEED), Reconstruction(), plain, y, x)
            named(name, found, expected, 1e-9)
        told[name] = found[0] + found[1]
    return told


def test_stacks(pool: WorkerPool) -> None:
    """Monte-Carlo directions and masks depend neither on the ranks nor on who holds what."""
    (expected,) = pool.run(stacked, "replicated", world_size=1)
    sharded = [("sharded", world_size) for world_size in WORLD_SIZES]
    for layout, world_size in (*sharded, ("replicated", 2), ("owned", 3), ("owned", 4)):
        for found in pool.run(stacked, layout, world_size=world_size):
            for name in STACKED:
                where = f"{name}, {layout}, {world_size} ranks"
                assert_close(found[name], expected[name], 1e-9, where)


def divergence(ctx: DistributedContext) -> None:
    """SURE of a stack estimates what one SURE for each operator estimates."""
    plain = StackedLinearPhysics(operators())
    y = measured(plain)
    physics = distribute(operators(), ctx, type_object="linear_physics")

    def mean(loss: Loss, operators: Any) -> tuple[float, float]:
        model = Reconstruction()
        values = torch.stack(
            [
                loss(x=None, x_net=model(y, operators), y=y, physics=operators, model=model).mean()
                for _ in range(60)
            ]
        ).detach()
        return float(values.mean()), float(values.std()) / 60**0.5

    ours, wide = mean(distribute(SureGaussianLoss(0.5, rng=generator(1)), ctx), physics)
    theirs, narrow = mean(
        StackedPhysicsLoss([SureGaussianLoss(0.5, rng=generator(2 + n)) for n in range(3)]), plain
    )
    assert abs(ours - theirs) < 4 * (wide**2 + narrow**2) ** 0.5
    # The divergence is no small part of it: without it the two would differ by far more.
    assert 4 * (wide**2 + narrow**2) ** 0.5 < 0.05 * abs(theirs)


def test_divergence_of_a_stack(pool: WorkerPool) -> None:
    pool.run(divergence, world_size=2)


# -- what is refused, and what is not there --------------------------------------------------------


def misuse(ctx: DistributedContext, what: str) -> None:
    y = measured(StackedLinearPhysics(operators()))
    physics = distribute(operators(), ctx, type_object="linear_physics")
    if what == "re-corruption of a list":
        loss = distribute(R2RLoss(noise_model=GaussianNoise(0.1)), ctx)
        steps(loss, over_ranks(ctx), physics, y)
    elif what == "neighbours in a list":
        steps(distribute(Neighbor2Neighbor(), ctx), over_ranks(ctx), physics, y)
    elif what == "unknown noise of a list":
        loss = distribute(SureGaussianLoss(0.1, unsure=True), ctx)
        steps(loss, over_ranks(ctx), physics, y)
    elif what == "another generator on one rank":
        own = generator(1) if ctx.rank == 0 else None
        loss = distribute(SureGaussianLoss(0.1, rng=own), ctx)
        steps(loss, over_ranks(ctx), physics, y)
    else:
        other = next(index for index in range(3) if index not in physics.ownership.mine)
        MCLoss()(y=y[other], x_net=draw(*SHAPE), physics=physics[other])


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("re-corruption of a list", TypeError, "use MCLoss, a SURE loss or SplittingLoss"),
        ("neighbours in a list", TypeError, "use MCLoss, a SURE loss or SplittingLoss"),
        ("unknown noise of a list", NotImplementedError, "use StackedPhysicsLoss with a loss each"),
        ("an operator of another rank", RemoteEntryError, "is on rank"),
        ("another generator on one rank", DisagreementError, "Build the loss.*alike on every rank"),
    ],
)
def test_what_is_refused(pool: WorkerPool, what: str, error: type[Exception], message: str) -> None:
    outcomes = pool.run(misuse, what, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, error, message)


def test_distributed_twice(pool: WorkerPool) -> None:
    with DistributedContext(device_mode="cpu") as ctx, DistributedContext() as other:
        loss = distribute(SureGaussianLoss(0.1), ctx)
        assert distribute(loss, ctx) is loss
        assert isinstance(loss, SureGaussianLoss)
        with pytest.raises(ValueError, match="was distributed over other ranks"):
            distribute(loss, other)
