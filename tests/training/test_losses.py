"""Losses of ``deepinv.loss`` on the measurements of a stack.

DeepInverse's measurement-consistency loss and its SURE and splitting losses take one tensor; of a
stack they are the sum over its operators, whose formulas are written out here. What one rank finds
is compared with them, and all other numbers of ranks and layouts with that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.loss import (
    EILoss,
    EquivariantSplittingLoss,
    Loss,
    MCLoss,
    Neighbor2Neighbor,
    R2RLoss,
    RandomLossScheduler,
    SplittingLoss,
    StackedPhysicsLoss,
    SupLoss,
    SureGaussianLoss,
    SurePGLoss,
    SurePoissonLoss,
    TVLoss,
)
from deepinv.loss.metric import MAE
from deepinv.physics import GaussianNoise, StackedLinearPhysics
from deepinv.physics.generator import BernoulliSplittingMaskGenerator
from deepinv.transform import Reflect, Rotate, Shift
from deepinv.utils.tensorlist import TensorList
from torch import Tensor, nn

from shardinv import RemoteEntryError, distribute
from shardinv.context import DistributedContext
from tests.harness import WorkerPool, assert_close, gradients
from tests.physics.space.operators import draw, quiet
from tests.physics.stacks import Dense, Gradients, flat, image, random_like
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
COUNT = 3


def operators() -> list[Any]:
    """One with noise and a generator of its own, for equivariance."""
    found = [blur(2), inpainting(3), inpainting(4)]
    for number, operator in enumerate(found):
        operator.noise_model = GaussianNoise(0.1, rng=generator(70 + number))
    return found


def masks(seed: int) -> BernoulliSplittingMaskGenerator:
    return BernoulliSplittingMaskGenerator((1, *SPATIAL), 0.8, rng=generator(seed))


Make = Callable[[int], Loss]

AS_UNDISTRIBUTED: dict[str, Make] = {
    "supervised": lambda s: SupLoss(),
    "total variation": lambda s: TVLoss(0.3),
    "equivariance": lambda s: EILoss(Shift(rng=generator(s)), apply_noise=False),
    "robust equivariance": lambda s: EILoss(
        Rotate(multiples=90, rng=generator(s), n_trans=2), apply_noise=True
    ),
    "one for each": lambda s: StackedPhysicsLoss(
        [SureGaussianLoss(0.1, rng=generator(s)), SurePoissonLoss(0.1, rng=generator(s)), MCLoss()]
    ),
    "one for each, equivariant": lambda s: StackedPhysicsLoss(
        [MCLoss(MAE()), EILoss(Reflect(rng=generator(s)), apply_noise=False), TVLoss()]
    ),
}
SUMS: dict[str, Make] = {
    "consistency": lambda s: MCLoss(),
    "consistency, absolute": lambda s: MCLoss(MAE()),
    "SURE": lambda s: SureGaussianLoss(0.1),
    "SURE, own generator": lambda s: SureGaussianLoss(0.1, rng=generator(s)),
    "SURE, Poisson": lambda s: SurePoissonLoss(0.2),
    "SURE, both": lambda s: SurePGLoss(0.1, 0.2, second_derivative=True),
    "splitting": lambda s: SplittingLoss(split_ratio=0.7, eval_n_samples=2),
    "splitting, own generator": lambda s: SplittingLoss(
        mask_generator=masks(s), eval_split_input=False
    ),
    "one of them": lambda s: RandomLossScheduler(
        MCLoss(), TVLoss(), SureGaussianLoss(0.1), generator=generator(s)
    ),
}
LOSSES = {**AS_UNDISTRIBUTED, **SUMS}


class Recorded(Reconstruction):
    """Keeps what it is given, so that formulas can be evaluated at the same perturbations."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[list[Tensor]] = []

    def forward(self, y: Any, physics: Any, **kwargs: Any) -> Tensor:
        if isinstance(y, TensorList):
            self.given.append([entry.detach().clone() for entry in y])
        return super().forward(y, physics, **kwargs)


def truth() -> Tensor:
    return draw(*SHAPE, seed=4).sigmoid()


def over_the_ranks(ctx: DistributedContext, strategy: str, layouts: tuple[str, ...]) -> Any:
    """For each layout of image and measurements, what each loss gives."""
    found: dict[str, dict[str, list[Tensor]]] = {layout: {} for layout in layouts}
    with quiet():
        for layout in layouts:
            for name, make in LOSSES.items():
                ours = distribute(operators(), ctx, strategy=strategy)
                y: Any = measured(StackedLinearPhysics(operators()))
                x, model = truth(), over_ranks(ctx)
                if "sharded" in layout:
                    x = ctx.shard(x)
                    model.layout = x.sharding
                    if strategy == "space":
                        y = TensorList([ctx.shard(entry) for entry in y])
                if "owned" in layout:
                    y = ours.own(y)
                loss = distribute(make(7 + ctx.rank), ctx)
                torch.manual_seed(5 + ctx.rank)
                found[layout][name] = steps(loss, model, ours, y, x)
    return found


def on_one_rank(ctx: DistributedContext) -> dict[str, tuple[list[Tensor], list[list[Tensor]]]]:
    """What each loss gives, and what the model was given meanwhile."""
    found = {}
    with quiet():
        for name, make in LOSSES.items():
            ours, model = distribute(operators(), ctx, strategy="operator"), Recorded()
            loss = distribute(make(7), ctx)
            torch.manual_seed(5)
            y = measured(StackedLinearPhysics(operators()))
            found[name] = steps(loss, model, ours, y, truth()), model.given
    return found


@pytest.fixture(scope="module")
def alone(pool: WorkerPool) -> dict[str, tuple[list[Tensor], list[list[Tensor]]]]:
    return pool.run(on_one_rank, world_size=1)[0]


# -- what one rank finds ---------------------------------------------------------------------------

REFERENCES: dict[str, Make] = {
    **AS_UNDISTRIBUTED,
    "consistency": lambda s: StackedPhysicsLoss([MCLoss()] * COUNT),
    "consistency, absolute": lambda s: StackedPhysicsLoss([MCLoss(MAE())] * COUNT),
    "one of them": lambda s: RandomLossScheduler(
        StackedPhysicsLoss([MCLoss()] * COUNT), TVLoss(), SupLoss(), generator=generator(s)
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_undistributed(alone: Any, name: str) -> None:
    with quiet():
        physics = StackedLinearPhysics(operators())
        model, y = Reconstruction(), measured(physics)
        torch.manual_seed(5)
        wanted = steps(REFERENCES[name](7), model, physics, y, truth())
    assert_close(alone[name][0], wanted, TIGHT, name)


class Formulas:
    """Losses written out, at the measurements that the model was given."""

    def __init__(self) -> None:
        with quiet():
            self.operators = operators()
        self.physics = StackedLinearPhysics(self.operators)
        self.y = list(measured(self.physics))
        self.model = Reconstruction()

    def reproject(self, y: list[Tensor]) -> list[Tensor]:
        return list(self.physics.A(self.model(TensorList(y), self.physics)))

    def gaussian(self, given: list[list[Tensor]]) -> Tensor:
        sigma, tau, total = 0.1, 1e-2, 0.0
        clean, moved = self.reproject(given[0]), self.reproject(given[1])
        for y, shifted, u, v in zip(self.y, given[1], clean, moved, strict=True):
            b = (shifted - y) / tau
            slope = (b * (v - u)).mean() / tau
            total = total + (u - y).square().mean() + 2 * sigma**2 * slope - sigma**2
        return torch.as_tensor(total)

    def poisson(self, given: list[list[Tensor]]) -> Tensor:
        gain, tau, total = 0.2, 1e-3, 0.0
        clean, moved = self.reproject(given[0]), self.reproject(given[1])
        for y, shifted, u, v in zip(self.y, given[1], clean, moved, strict=True):
            b = (shifted - y).sign()
            slope = (b * y * (v - u)).mean() / tau
            total = total + (u - y).square().mean() - gain * y.mean() + 2 * gain * slope
        return torch.as_tensor(total)

    def both(self, given: list[list[Tensor]]) -> Tensor:
        sigma, gain, tau, tau2, total = 0.1, 0.2, 1e-3, 1e-2, 0.0
        values = [self.reproject(y) for y in given]
        # DeepInverse draws them in single precision, whatever the measurement's.
        levels = [(0.7236 / 0.2764) ** 0.5, -((0.2764 / 0.7236) ** 0.5)]
        above, below = torch.tensor(levels, dtype=torch.float32).double()
        for i, y in enumerate(self.y):
            clean, moved, ahead, behind = (each[i] for each in values)
            b = (given[1][i] - y).sign()
            c = torch.where(given[2][i] > y, above, below)
            first = (b * (gain * y + sigma**2) * (moved - clean)).mean() / tau
            second = (c * (ahead + behind - 2 * clean)).mean() / tau2**2
            total = total + (clean - y).square().mean() - gain * y.mean() - sigma**2
            total = total + 2 * first - 2 * sigma**2 * gain * second
        return torch.as_tensor(total)

    def splitting(self, given: list[list[Tensor]]) -> Tensor:
        (parts,), total = given, 0.0
        for operator, y, part, u in zip(
            self.operators, self.y, parts, self.reproject(parts), strict=True
        ):
            other = getattr(operator, "mask", torch.ones_like(y)) - (part != 0).double()
            assert other.min() == 0
            total = total + (other * (u - y)).square().mean() / other.mean()
        return torch.as_tensor(total)


WRITTEN_OUT = {
    "SURE": ("gaussian", 2),
    "SURE, own generator": ("gaussian", 2),
    "SURE, Poisson": ("poisson", 2),
    "SURE, both": ("both", 4),
    "splitting": ("splitting", 1),
    "splitting, own generator": ("splitting", 1),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_formulas(alone: Any, name: str) -> None:
    values, given = alone[name]
    formulas = Formulas()
    method, calls = WRITTEN_OUT[name]
    for step in range(2):
        wanted = getattr(formulas, method)(given[step * calls : (step + 1) * calls])
        slopes = torch.autograd.grad(wanted, list(formulas.model.parameters()))
        found = values[2 * step].mean(), values[2 * step + 1]
        wanted = wanted.detach(), torch.cat([slope.flatten() for slope in slopes])
        # DeepInverse draws masks, and weights the loss by them, in single precision.
        to = 1e-7 if method == "splitting" else TIGHT
        assert_close(found, wanted, to, f"{name}, step {step}, ")


def divergence(ctx: DistributedContext) -> None:
    blurs = [blur(4), blur(5), blur(6)]
    plain = StackedLinearPhysics(blurs)
    y = measured(plain)
    physics = distribute(blurs, ctx, strategy="operator")

    def mean(loss: Loss, stack: Any) -> tuple[float, float]:
        model = Reconstruction()
        values = torch.stack(
            [
                loss(x=None, x_net=model(y, stack), y=y, physics=stack, model=model).mean()
                for _ in range(60)
            ]
        ).detach()
        return float(values.mean()), float(values.std()) / 60**0.5

    ours, wide = mean(distribute(SureGaussianLoss(0.5, rng=generator(1)), ctx), physics)
    theirs, narrow = mean(
        StackedPhysicsLoss([SureGaussianLoss(0.5, rng=generator(2 + n)) for n in range(COUNT)]),
        plain,
    )
    assert abs(ours - theirs) < 4 * (wide**2 + narrow**2) ** 0.5
    # The divergence is no small part of it: without it the two would differ by far more.
    assert 4 * (wide**2 + narrow**2) ** 0.5 < 0.05 * abs(theirs)


def test_divergence_of_a_stack(pool: WorkerPool) -> None:
    """SURE of a stack estimates what one SURE for each operator estimates."""
    pool.run(divergence, world_size=2)


def test_perturbations_are_independent(alone: Any) -> None:
    """Normal numbers, of each operator and step their own."""
    _, given = alone["SURE"]
    drawn = [
        (moved - y).flatten() / 1e-2
        for y_list, moved_list in (given[:2], given[2:])
        for y, moved in zip(y_list, moved_list, strict=True)
    ]
    correlations = torch.corrcoef(torch.stack(drawn))
    assert (correlations - torch.eye(2 * COUNT)).abs().max() < 0.2
    assert all(0.9 < b.std() < 1.1 and b.mean().abs() < 0.15 for b in drawn)


# -- what more ranks find --------------------------------------------------------------------------

LAYOUTS = {
    "operator": ("replicated", "sharded, owned"),
    "operator, other lists": ("owned", "sharded"),
    "space": ("replicated", "sharded"),
}


@pytest.mark.parametrize(
    ("strategy", "world_size"),
    (
        ("operator", 2),
        ("operator", 3),
        ("operator", 4),
        ("operator, other lists", 2),
        ("space", 1),
        ("space", 2),
        ("space", 3),
    ),
)
def test_lists_of_measurements(
    pool: WorkerPool, alone: Any, strategy: str, world_size: int
) -> None:
    """Case 21 of the peers' list: measurement consistency and SURE on lists, and all other losses.

    Ranks are seeded differently.
    """
    layouts = LAYOUTS[strategy]
    found = pool.run(over_the_ranks, strategy.split(",")[0], layouts, world_size=world_size)
    for rank, results in enumerate(found):
        for layout in layouts:
            for name, values in results[layout].items():
                assert_close(values, alone[name][0], TIGHT, f"{name}, {layout}, rank {rank}, ")


# -- lists that are not images, and metrics of lists -----------------------------------------------


class SquaredError(nn.Module):
    """A mean squared error of lists, complex and nested ones too."""

    def forward(self, estimate: Any, y: Any) -> Tensor:
        pairs = list(zip(flat(estimate), flat(y), strict=True))
        return sum((a - b).abs().square().mean() for a, b in pairs) / len(pairs)


def nested_lists(ctx: DistributedContext) -> None:
    """A metric that knows lists gets them, as undistributed; SURE takes any shape."""
    dealt = [Dense(20, seed=1), Gradients(), Dense(18, seed=2)]
    physics, ours = StackedLinearPhysics(dealt), distribute(dealt, ctx)
    y = random_like(physics.A(image(0)))
    loss = distribute(MCLoss(metric=SquaredError()), ctx)

    def consistency(measure: Any, stack: Any, given: Any) -> Any:
        return lambda x: measure(y=given, x_net=x, physics=stack)

    theirs = gradients(consistency(MCLoss(metric=SquaredError()), physics, y), image(1))
    for given in (y, ours.own(y)):
        assert_close(gradients(consistency(loss, ours, given), image(1)), theirs, 1e-11)

    matrices = [Dense(20, seed=1), Dense(18, seed=2)]
    ours = distribute(matrices, ctx)
    y = measured_rows(matrices)
    sure = distribute(SureGaussianLoss(0.1), ctx)
    values = []
    for given in (y, ours.own(y)):
        torch.manual_seed(3 + ctx.rank)

        def model(entries: Any, stack: Any) -> Tensor:
            return stack.A_adjoint(entries).tanh()

        values.append(sure(y=given, x_net=model(given, ours), physics=ours, model=model))
    assert_close(values[0], values[1], 1e-11)


def measured_rows(matrices: list[Dense]) -> TensorList:
    return random_like(StackedLinearPhysics(matrices).A(image(0)))


def refusals(ctx: DistributedContext) -> None:
    physics = distribute(operators(), ctx, strategy="operator")
    y = measured(StackedLinearPhysics(operators()))
    given: dict[str, Any] = {"x_net": truth(), "y": y, "physics": physics}
    splitting = EquivariantSplittingLoss(mask_generator=masks(0))
    for loss in (Neighbor2Neighbor(), R2RLoss(), splitting):
        ours = distribute(loss, ctx)
        words = f"{type(loss).__name__} .*list of 3 of a stack: use MCLoss, a SURE loss or Splitt"
        with pytest.raises(TypeError, match=words):
            ours(**given, model=ours.adapt_model(Reconstruction()))
    for loss in (R2RLoss(), splitting):
        with pytest.raises(TypeError, match="compares single measurements"):
            distribute(loss, ctx).adapt_model(Reconstruction())(y, physics)
    with pytest.raises(NotImplementedError, match="use StackedPhysicsLoss with a loss each"):
        distribute(SureGaussianLoss(0.1, unsure=True), ctx)(**given, model=Reconstruction())
    masked = distribute(SplittingLoss(eval_split_output=True), ctx).adapt_model(Reconstruction())
    with pytest.raises(NotImplementedError, match="use eval_split_output=False"):
        masked.eval()(y, physics)
    noisy = StackedPhysicsLoss([EILoss(Reflect()), MCLoss(), MCLoss()])
    with pytest.raises(NotImplementedError, match=r"noise of the whole stack, physics\(x\)"):
        distribute(noisy, ctx)(x=None, **given, model=Reconstruction())
    with pytest.raises(ValueError, match="3 operators have 2 measurements"):
        distribute(MCLoss(), ctx)(**{**given, "y": y[:2]})
    other = next(index for index in range(COUNT) if index not in physics.ownership.mine)
    owner = physics.ownership.owner(other)
    with pytest.raises(RemoteEntryError, match=f"operator {other} is on rank {owner}"):
        MCLoss()(y=y[other], x_net=truth(), physics=physics[other])


def test_nested_lists(pool: WorkerPool) -> None:
    pool.run(nested_lists, world_size=2)


def test_what_a_list_is_not_for_is_refused(pool: WorkerPool) -> None:
    pool.run(refusals, world_size=2)
