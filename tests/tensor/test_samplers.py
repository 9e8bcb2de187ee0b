"""Samplers of DeepInverse, as they are, on an image of which every rank holds a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from deepinv.optim import ScorePrior
from deepinv.optim.data_fidelity import L2
from deepinv.physics import Denoising, GaussianNoise, Inpainting, Physics
from deepinv.sampling import (
    DDRM,
    DPS,
    ULA,
    ALDDataFidelity,
    DiffPIR,
    DiffusionSampler,
    DPSDataFidelity,
    HeunSolver,
    PosteriorDiffusion,
    ScoreSDEDataFidelity,
    SKRock,
    VarianceExplodingDiffusion,
)

from shardinv import DistributedContext, distribute
from shardinv.tensor import LayoutError, ShardedTensor
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_every_rank_raised
from tests.tensor.algorithms import (
    LAYOUTS,
    SHAPE,
    Case,
    Convolutional,
    Mixing,
    Pixelwise,
    compare,
    images,
    some_of,
)

Sampler = Callable[[], Any]
Operator = Callable[[torch.Tensor], Physics]


def mixing(mask: torch.Tensor) -> Physics:
    return Mixing(mask, max_iter=4, noise_model=GaussianNoise(0.1))


def draw(make: Sampler, operator: Operator = mixing, start: bool = False) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        sampler, physics = make(), operator(mask)
        if isinstance(x, ShardedTensor):
            assert distribute(sampler, DistributedContext()) is sampler
        options = {"x_init": 0.5 * x} if start else {}
        return sampler(physics.A(x), physics, **options)

    return run


def chain(make: Callable[..., Any], **options: Any) -> Sampler:
    return lambda: make(
        prior=ScorePrior(Pixelwise()), data_fidelity=L2(sigma=0.1), step_size=1e-3, alpha=0.9,
        sigma=0.1, max_iter=5, burnin_ratio=0.2, thinning=1, clip=(-1, 2), verbose=False,
        **options,
    )  # fmt: skip


def diffusion(fidelity: Callable[[], Any], denoiser: Any) -> Sampler:
    return lambda: PosteriorDiffusion(
        data_fidelity=fidelity(),
        sde=VarianceExplodingDiffusion(),
        denoiser=denoiser,
        solver=HeunSolver(timesteps=torch.linspace(1, 0.01, 3)),
    )


def each_channel(mask: torch.Tensor) -> Physics:
    """DDRM wants a mask with all channels."""
    mask = mask.expand(1, 3, -1, -1)
    return Inpainting(tuple(mask.shape[1:]), mask=mask, noise_model=GaussianNoise(0.1))


def sampler_cases() -> dict[str, Case]:
    network = Convolutional()
    levels = np.linspace(1, 0, 4)
    return {
        "ULA": draw(chain(ULA)),
        "SK-ROCK": draw(chain(SKRock, inner_iter=3, eta=0.05)),
        "DiffPIR": draw(lambda: DiffPIR(Pixelwise(), L2(), max_iter=4)),
        "several DiffPIR": draw(
            lambda: DiffusionSampler(DiffPIR(Pixelwise(), L2(), max_iter=3), max_iter=2)
        ),
        "DPS": draw(lambda: DPS(Pixelwise(), num_steps=3)),
        "DPS, network": draw(lambda: DPS(network, num_steps=3)),
        "DPS, annealed": draw(lambda: DPS(network, num_steps=3, guidance="annealed")),
        "DPS, from a start": draw(lambda: DPS(Pixelwise(), num_steps=3), start=True),
        "DPS, exploding": draw(
            lambda: DPS(Pixelwise(), num_steps=3, schedule="ve", solver="euler")
        ),
        "DDRM, inpainting": draw(lambda: DDRM(Pixelwise(), sigmas=levels), each_channel),
        "DDRM, denoising": draw(
            lambda: DDRM(Pixelwise(), sigmas=levels), lambda mask: Denoising(GaussianNoise(0.1))
        ),
        "diffusion, DPS": draw(diffusion(lambda: DPSDataFidelity(Pixelwise()), Pixelwise())),
        "diffusion, ALD": draw(diffusion(ALDDataFidelity, network)),
        "diffusion, score": draw(diffusion(ScoreSDEDataFidelity, Pixelwise())),
    }


def run_samplers(ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]) -> None:
    # The networks work in single precision inside a sampler in double precision.
    cases = some_of(sampler_cases(), mesh, shape)
    compare(ctx, cases, mesh, shape, rtol=2e-5, halo=2 * 8 * shape[0] * 4 * max(shape[2:]))


@pytest.mark.parametrize(("world_size", "mesh", "shape"), LAYOUTS)
def test_samplers(pool: WorkerPool, world_size: int, mesh: Any, shape: Any) -> None:
    pool.run(run_samplers, mesh, shape, world_size=world_size)


def sample(ctx: DistributedContext) -> list[torch.Tensor]:
    """One sample and one more, of torch's default generator."""
    x, mask = images(SHAPE)
    torch.manual_seed(7)  # that the ranks' seeds differ does not matter: see the rules of draws
    physics = mixing(ctx.shard(mask))
    sampler = distribute(DPS(Pixelwise(), num_steps=3), ctx)
    y = physics.A(ctx.shard(x))
    return [sampler(y, physics).full_tensor() for _ in range(2)]


def test_a_sample_does_not_depend_on_the_ranks(pool: WorkerPool) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(sample, world_size=size)]
    first, second = results[0]
    assert (first - second).norm() > 0.1 * first.norm()
    for result in results[1:]:
        assert_close(result, results[0], 1e-5)


def alone(ctx: DistributedContext) -> None:
    x, mask = images(SHAPE)
    physics = mixing(ctx.shard(mask))
    DPS(Pixelwise(), num_steps=3)(physics.A(ctx.shard(x)), physics)


def test_a_replicated_first_sample_is_refused(pool: WorkerPool) -> None:
    outcomes = pool.run(alone, expect_error=True)
    assert_every_rank_raised(outcomes, LayoutError, "replicated tensor .* varies in space")
