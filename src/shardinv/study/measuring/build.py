"""The blocks of a point, of the system that is measured: what the loop is given."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from torch import Tensor

from shardinv.geometry import Box
from shardinv.problems import noise_schedule, normalised_adjoint, step_size
from shardinv.study.analysis.factors import Work
from shardinv.study.measuring.scene import network_of, problem_of, truth_of
from shardinv.study.measuring.work import fixed_cores, tiles_of
from shardinv.study.plan.point import Point


@dataclass
class Blocks:
    """Everything that an iteration needs, and the truth to score it by.

    Parameters
    ----------
    ctx
        The ranks, of whichever system; None where there is only one process.
    start, truth
        The first iterate and the true image, as the layout has them.
    y, physics, fidelity, denoiser
        The measurements, and DeepInverse's objects or those that stand in for them.
    network
        The undistributed network inside the denoiser.
    step, sigmas
        Step size, and the denoiser's strength at each iteration.
    work
        Of the network, where it is known.
    cores
        What each tile keeps, where there are tiles.
    """

    ctx: Any
    start: Tensor
    truth: Tensor
    y: Any
    physics: Any
    fidelity: Any
    denoiser: Any
    network: Any
    step: float
    sigmas: list[float]
    work: Work | None
    cores: list[Box] = field(default_factory=list)


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
    truth = truth_of(point).to(device)
    problem = problem_of(point)
    network = network_of(point, device)
    plain = problem.stack(device)
    physics: Any = plain
    fidelity: Any = StackedPhysicsDataFidelity([L2()] * point.frames)
    denoiser: Any = network
    work: Work | None = None
    cores: list[Box] = []
    if ctx is not None:
        library = importlib.import_module(point.system)
        sharded = point.layout == "sharded"
        physics = library.distribute(
            problem.frame,
            ctx,
            num_operators=point.frames,
            type_object="linear_physics",
            **({"strategy": "space"} if sharded else {}),
        )
        fidelity = library.distribute(L2(), ctx)
        denoiser = library.distribute(network, ctx, type_object="denoiser", **tiling_of(point))
        truth = ctx.shard(truth) if sharded else truth
        if point.system == "shardinv":
            work, cores = tiles_of(denoiser, truth, point.frames)
        else:
            cores = fixed_cores(point, tuple(truth.shape[2:]))
    with torch.no_grad():
        # Each frame has a generator of its own, which only the peer does not use.
        y = (plain if point.system == "deepinv.distributed" else physics)(truth)
        side = min(point.size, 32 * point.factor)
        torch.manual_seed(point.seed)  # the norm is estimated from a random image
        small = torch.zeros(*truth.shape[:2], *[side] * (truth.dim() - 2), device=device)
        step = step_size(plain, small)
        start = normalised_adjoint(physics, y, truth)
    sigmas = noise_schedule(point.sigma_start, point.sigma_end, point.iterations)
    return Blocks(
        ctx, start, truth, y, physics, fidelity, denoiser, network, step, sigmas, work, cores
    )


def tiling_of(point: Point) -> dict[str, Any]:
    """The options of ``distribute`` for a point's tiles."""
    return {
        "patch_size": point.tile or point.size,
        "overlap": point.overlap if point.tile else 0,
        "max_batch_size": point.batch,
    }
