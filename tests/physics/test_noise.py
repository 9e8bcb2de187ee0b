"""Noise that does not depend on the number of ranks (case 11 of the peer)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import (
    GaussianNoise,
    LaplaceNoise,
    LinearPhysics,
    PoissonGaussianNoise,
    PoissonNoise,
    SaltPepperNoise,
    StackedLinearPhysics,
    StackedPhysics,
    UniformGaussianNoise,
    UniformNoise,
)

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_same_on_every_rank
from tests.physics.stacks import (
    flat,
    generator,
    image,
    linear_operators,
    nonlinear_operators,
    positive_image,
)

MODELS = {
    "gaussian": lambda rng: GaussianNoise(0.3, rng=rng),
    "uniform": lambda rng: UniformNoise(0.3, rng=rng),
    "gaussian of random level": lambda rng: UniformGaussianNoise(0.1, 0.5, rng=rng),
    "poisson": lambda rng: PoissonNoise(0.5, clip_positive=True, rng=rng),
    "poisson and gaussian": lambda rng: PoissonGaussianNoise(0.5, 0.1, clip_positive=True, rng=rng),
    "salt and pepper": lambda rng: SaltPepperNoise(0.2, 0.2, rng=rng),
    "laplace": lambda rng: LaplaceNoise(0.2, rng=rng),
}


def identities(count: int) -> list[LinearPhysics]:
    return [
        LinearPhysics(A=lambda x, **_: x.clone(), A_adjoint=lambda y, **_: y) for _ in range(count)
    ]


def noisy(model: str, rngs: list[torch.Generator | None]) -> list[LinearPhysics]:
    operators = identities(len(rngs))
    for op, rng in zip(operators, rngs):
        op.set_noise_model(MODELS[model](rng))
    return operators


def draws(ctx: DistributedContext, model: str) -> list[Any]:
    """Two calls, a call after the seed was set again, and one that leaves them where they are."""
    ours = distribute(noisy(model, [None] * 5), ctx)
    x = positive_image(0)
    torch.manual_seed(11)
    first, second = flat(ours(x)), flat(ours(x))
    torch.manual_seed(11)
    again = flat(ours(x))
    torch.manual_seed(11)
    owned = ours(x, gather=False)
    later = flat(ours.noise(ours.A(x)))
    return [first, second, again, flat(owned.gather()), later]


@pytest.mark.parametrize("model", ["gaussian", "poisson", "salt and pepper"])
def test_without_generators(pool: WorkerPool, model: str) -> None:
    results = {size: pool.run(draws, model, world_size=size) for size in WORLD_SIZES}
    for size in WORLD_SIZES:
        assert_same_on_every_rank(results[size])
        assert_close(results[size][0], results[1][0], 0.0, f"{size} ranks against one, ")
    first, second, again, owned, later = results[1][0]
    assert_close(again, first, 0.0, "after manual_seed")
    assert_close(owned, first, 0.0, "gather=False")
    assert_close(later, second, 0.0, "noise added apart")
    every = [*first, *second]
    for i, one in enumerate(every):
        for other in every[:i]:
            assert not torch.equal(one, other)


def levels(ctx: DistributedContext) -> list[torch.Tensor]:
    ours = distribute(noisy("gaussian", [None] * 3), ctx)
    x = torch.zeros(1, 1, 200, 200, dtype=torch.float64)
    return [entry.std() for entry in flat(ours(x))] + [entry.mean() for entry in flat(ours(x))]


def test_noise_has_the_level_asked_for(pool: WorkerPool) -> None:
    values = pool.run(levels, world_size=2)[0]
    assert all(abs(value - 0.3) < 0.01 for value in values[:3])
    assert all(abs(value) < 0.01 for value in values[3:])


def user_generator(ctx: DistributedContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The user's own random numbers: ranks that were alike stay alike, whatever they own."""
    ours = distribute(noisy("gaussian", [None] * 3), ctx)
    torch.manual_seed(5)
    ours(image(0))
    return torch.rand(4)


def test_the_default_generator_advances_alike(pool: WorkerPool) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(user_generator, world_size=size)]
    assert_same_on_every_rank(results)


def offset_seeds(ctx: DistributedContext) -> list[torch.Tensor]:
    torch.manual_seed(40 + ctx.rank)
    return flat(distribute(noisy("gaussian", [None] * 4), ctx)(image(0)))


def test_ranks_with_seeds_of_their_own_draw_the_same(pool: WorkerPool) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(offset_seeds, world_size=size)]
    assert_same_on_every_rank(results)


def own_generators(ctx: DistributedContext) -> None:
    """A noise model with a generator that no other uses draws what it always did."""

    def operators(model: str) -> list[LinearPhysics]:
        return noisy(model, [generator(50 + number) for number in range(4)])

    x = positive_image(0)
    for model in MODELS:
        reference = StackedLinearPhysics(operators(model))
        ours = distribute(StackedLinearPhysics(operators(model)), ctx)
        for call in range(2):
            torch.manual_seed(call)
            assert_close(ours(x), reference(x), 0.0, f"{model}, call {call}")
        owned = ours(x, gather=False)
        assert_close(owned.gather(), reference(x), 0.0, f"{model}, gather=False")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_own_generators(pool: WorkerPool, world_size: int) -> None:
    pool.run(own_generators, world_size=world_size)


def shared_generators(ctx: DistributedContext) -> list[Any]:
    """One generator, or one whole noise model, for all operators; two that only look alike."""
    results = []
    x = image(0)
    rng = generator(3)
    results += [flat(distribute(noisy("gaussian", [rng, rng, rng]), ctx)(x))]
    operators = identities(3)
    model = GaussianNoise(0.3, rng=generator(3))
    for op in operators:
        op.set_noise_model(model)
    ours = distribute(operators, ctx)
    results += [flat(ours(x)), flat(ours(x))]
    some = [rng, generator(8), rng]  # the second keeps its own
    results += [flat(distribute(noisy("gaussian", some), ctx)(x))]
    expected = noisy("gaussian", [generator(8)])[0](x)
    assert_close(results[-1][1], expected, 0.0, "the one that shares with none")
    for result in results:
        assert not torch.equal(result[0], result[2])
    return results


def test_shared_generators(pool: WorkerPool) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(shared_generators, world_size=size)]
    assert_same_on_every_rank(results)


def from_a_factory(ctx: DistributedContext) -> list[Any]:
    rng = generator(3)  # handed to all of them, which no rank can see
    for rngs in ([rng] * 4, [None] * 4):
        ours = distribute(
            lambda index, *_, rngs=rngs: noisy("gaussian", rngs)[index],
            ctx, type_object="physics", num_operators=4,
        )  # fmt: skip
        result = flat(ours(image(0)))
        for i, one in enumerate(result):
            assert not any(torch.equal(one, other) for other in result[:i])
    ours = distribute(
        lambda index, *_: noisy("gaussian", [generator(index)] * 4)[index],
        ctx, type_object="physics", num_operators=4,
    )  # fmt: skip
    theirs = StackedPhysics(noisy("gaussian", [generator(index) for index in range(4)]))
    for _ in range(2):
        assert_close(ours(image(0)), theirs(image(0)), 0.0, "a seed for each operator")
    return result


def test_noise_of_a_factorys_operators(pool: WorkerPool) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(from_a_factory, world_size=size)]
    assert_same_on_every_rank(results)


def set_later(ctx: DistributedContext) -> list[Any]:
    """Models set on the distributed stack: own generators, none, and one for two operators."""
    ours = distribute(linear_operators(4), ctx)
    reference = StackedLinearPhysics(linear_operators(4))
    for stack in (ours, reference):
        for index in range(3):
            stack.set_noise_model(GaussianNoise(0.2, rng=generator(index)), index)
    assert_close(ours(image(0)), reference(image(0)), 0.0, "own generators set later")
    ours.set_noise_model(GaussianNoise(0.2), item=1)
    shared = GaussianNoise(0.2, rng=generator(9))
    ours.set_noise_model(shared, item=0)
    ours.set_noise_model(shared, item=-1)
    return flat(ours(image(0)))


def test_noise_models_set_on_the_stack(pool: WorkerPool) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(set_later, world_size=size)]
    assert_same_on_every_rank(results)


def seeds_given(ctx: DistributedContext) -> None:
    """A seed in the call reaches the operators' own generators, as it does undistributed."""
    rngs = [generator(n) for n in range(3)]
    reference = StackedLinearPhysics(noisy("gaussian", [generator(n) for n in range(3)]))
    ours = distribute(noisy("gaussian", rngs), ctx)
    x = image(0)
    assert_close(ours(x, seed=5), reference(x, seed=5), 0.0)
    assert_close(ours(x, sigma=0.7), reference(x, sigma=0.7), 0.0, "another level")


@pytest.mark.parametrize("world_size", (1, 2))
def test_a_seed_in_the_call(pool: WorkerPool, world_size: int) -> None:
    pool.run(seeds_given, world_size=world_size)


def sensor_and_noise(ctx: DistributedContext) -> None:
    """The sensor comes after the noise; both work on full and on owned lists, nested ones too."""

    def operators() -> list[LinearPhysics]:
        made = linear_operators(4)
        for index, op in enumerate(made):
            op.set_noise_model(GaussianNoise(0.3, rng=generator(index)))
            op.sensor_model = lambda y: y.clamp(min=0) + 1
        return made

    reference, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    x = image(0)
    assert_close(ours(x), reference(x), 0.0)
    clean = ours.A(x)
    assert_close(
        ours.sensor(ours.noise(clean)), reference.sensor(reference.noise(reference.A(x))), 0.0
    )
    owned = ours.sensor(ours.noise(ours.A(x, gather=False)))
    assert_close(owned.gather(), reference(x), 0.0)
    bent = nonlinear_operators(3)
    for index, op in enumerate(bent):
        op.set_noise_model(GaussianNoise(0.3, rng=generator(index)))
    again = nonlinear_operators(3)
    for index, op in enumerate(again):
        op.set_noise_model(GaussianNoise(0.3, rng=generator(index)))
    assert_close(distribute(bent, ctx)(x), StackedPhysics(again)(x), 0.0, "not linear")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sensor_and_noise(pool: WorkerPool, world_size: int) -> None:
    pool.run(sensor_and_noise, world_size=world_size)


def noise_is_drawn_once(ctx: DistributedContext) -> None:
    """Gradients pass noise that is added, and stop at noise that isn't differentiable."""
    ours = distribute(noisy("gaussian", [None] * 3), ctx)
    x = image(0).requires_grad_()
    sum(y.sum() for y in flat(ours(x))).backward()
    assert_close(x.grad, torch.full_like(x, 3.0), 0.0)


@pytest.mark.parametrize("world_size", (1, 4))
def test_gradient_through_noise(pool: WorkerPool, world_size: int) -> None:
    pool.run(noise_is_drawn_once, world_size=world_size)
