"""The blocks of a point, of the system that is measured: what the loop is given."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from torch import Tensor

from shardinv.io import PHOTOGRAPHS, read_image, shipped_file
from shardinv.problems import (
    MultiFrame,
    centre_square,
    load_denoiser,
    noise_schedule,
    normalised_adjoint,
    step_size,
)
from shardinv.study.analysis.factors import Work
from shardinv.study.plan.point import Point
from shardinv.tensor import ShardedTensor


@dataclass
class Blocks:
    """Everything that an iteration needs, and the truth to score it by.

    Parameters
    ----------
    ctx
        The ranks, of whichever system; None where there is only one process.
    start, truth
        The first iterate and the true image, ``(1, 3, size, size)``, as the layout has them.
    y, physics, fidelity, denoiser
        The measurements, and DeepInverse's objects or those that stand in for them.
    step, sigmas
        Step size, and the denoiser's strength at each iteration.
    work
        Of the network, where it is known.
    """

    ctx: Any
    start: Tensor
    truth: Tensor
    y: Any
    physics: Any
    fidelity: Any
    denoiser: Any
    step: float
    sigmas: list[float]
    work: Work | None


def context(point: Point) -> Any:
    """The ranks, as the system has them; a context manager."""
    if point.system == "deepinv":
        return contextlib.nullcontext()
    library = importlib.import_module(point.system)
    return library.DistributedContext(device_mode=point.device, seed=point.seed)


def build(point: Point, ctx: Any) -> Blocks:
    """Build a point's blocks, on every rank of its context."""
    torch.set_num_threads(point.threads)
    device = torch.device("cuda" if point.device == "gpu" else "cpu") if ctx is None else ctx.device
    path = shipped_file(point.photograph) if point.photograph in PHOTOGRAPHS else point.photograph
    truth = centre_square(read_image(path).expand(-1, 3, -1, -1), point.size)[0].to(device)
    problem = MultiFrame(point.frames, point.factor, point.noise, point.seed)
    network = load_denoiser(point.network, device=device)
    plain = problem.stack(device)
    physics: Any = plain
    fidelity: Any = StackedPhysicsDataFidelity([L2()] * point.frames)
    denoiser: Any = network
    work = None
    if ctx is not None:
        library = importlib.import_module(point.system)
        sharded = point.layout == "sharded"
        physics = library.distribute(
            problem.frame,
            ctx,
            num_operators=problem.frames,
            type_object="linear_physics",
            **({"strategy": "space"} if sharded else {}),
        )
        fidelity = library.distribute(L2(), ctx)
        denoiser = library.distribute(
            network,
            ctx,
            type_object="denoiser",
            patch_size=point.tile or point.size,
            overlap=point.overlap if point.tile else 0,
            max_batch_size=point.batch,
        )
        truth = ctx.shard(truth) if sharded else truth
        if point.system == "shardinv":
            work = _work(denoiser, truth)
    with torch.no_grad():
        # Each frame has a generator of its own, which only the peer does not use.
        y = (plain if point.system == "deepinv.distributed" else physics)(truth)
        side = min(point.size, 32 * point.factor)
        torch.manual_seed(point.seed)  # the norm is estimated from a random image
        step = step_size(plain, torch.zeros(1, 3, side, side, device=device))
        start = normalised_adjoint(physics, y, truth)
    sigmas = noise_schedule(point.sigma_start, point.sigma_end, point.iterations)
    return Blocks(ctx, start, truth, y, physics, fidelity, denoiser, step, sigmas, work)


def _work(denoiser: Any, truth: Tensor) -> Work:
    """The pixels of a distributed denoiser's windows; those of a network's own padding too."""
    spatial = tuple(truth.shape[2:])
    schedule = denoiser.schedule(
        spatial, truth.sharding if isinstance(truth, ShardedTensor) else None
    )
    stride = schedule.stride
    padded = [
        prod(-(-side // stride) * stride for side in tile.window.shape)
        for tile in schedule.grid.tiles
    ]
    cut = sum(schedule.grid.costs)
    return Work(
        image=prod(spatial),
        with_halo=cut,
        with_quantisation=cut,
        with_padding=sum(padded),
        by_rank=tuple(sum(padded[index] for index in hand) for hand in schedule.hands),
    )
