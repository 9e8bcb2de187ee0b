"""Noise is the same for both layouts, both strategies and any number of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import (
    Blur,
    GaussianNoise,
    Physics,
    PoissonGaussianNoise,
    PoissonNoise,
    StackedLinearPhysics,
    UniformNoise,
)

from shardinv import DistributedContext, distribute
from tests.harness import WORLD_SIZES, WorkerPool, assert_close
from tests.physics.stacks import kernel, positive_image, quiet


def operator(index: int, own: bool = False) -> Physics:
    """Noise of four kinds, from a generator of each operator's own or from none."""
    rng = torch.Generator().manual_seed(index) if own else None
    noise = [
        GaussianNoise(0.1, rng=rng),
        PoissonNoise(0.1, rng=None),
        UniformNoise(0.2, rng=rng),
        PoissonGaussianNoise(0.1, 0.05, rng=None),
    ][index]
    padding = ("circular", "reflect", "valid", "replicate")[index]
    with quiet():
        return Blur(kernel(index), padding=padding, noise_model=noise)


def operators(own: bool) -> list[Physics]:
    return [operator(index, own) for index in range(4)]


def gathered(y: Any) -> list[torch.Tensor]:
    return [e.full_tensor() if hasattr(e, "full_tensor") else e for e in (y[i] for i in range(4))]


def measure(ctx: DistributedContext) -> list[list[torch.Tensor]]:
    x = positive_image()
    found = []
    for own in (False, True):
        torch.manual_seed(5)
        wanted = list(distribute(operators(own), ctx)(x))
        found.append(wanted)
        for strategy in (None, "space"):
            for image in (x, ctx.shard(x)):
                torch.manual_seed(5)
                y = distribute(operators(own), ctx, strategy=strategy)(image)
                what = f"own generators {own}, strategy {strategy}, {type(image).__name__}"
                # Poisson counts jump where a rate differs by rounding: it doesn't here.
                assert_close(gathered(y), wanted, 1e-12, what)
    made = {"type_object": "linear_physics", "num_operators": 4}
    factory = lambda index, device, kwargs: operator(index, True)  # noqa: E731
    for strategy, image in (("operator", x), ("space", ctx.shard(x))):
        torch.manual_seed(5)
        y = distribute(factory, ctx, strategy=strategy, **made)(image)
        # As those of a list: the last of what is found above.
        assert_close(gathered(y), wanted, 1e-12, f"a factory by {strategy}")
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_same_noise(pool: WorkerPool, world_size: int) -> None:
    results = pool.run(measure, world_size=world_size)
    torch.manual_seed(5)
    with DistributedContext() as ctx:
        alone = measure(ctx)
    undistributed = StackedLinearPhysics(operators(True))(positive_image())
    for drawn, owned in results:
        assert_close(drawn, alone[0], 1e-12, "the noise of one rank")
        # Generators of their own: Gaussian and uniform noise is the undistributed stack's.
        assert_close(owned[0], undistributed[0], 1e-12, "Gaussian")
        assert_close(owned[2], undistributed[2], 1e-12, "uniform")
