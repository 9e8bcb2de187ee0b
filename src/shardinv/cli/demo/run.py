"""What every rank of the demo does: measure, reconstruct, compare."""

from __future__ import annotations

import shutil
import time
from math import prod
from typing import Any

import torch
from deepinv.optim.data_fidelity import L2
from deepinv.utils import TensorList
from torch.nn.functional import interpolate

from shardinv import DistributedContext, distribute
from shardinv.cli.demo.checkpoints import load_checkpoint, saver
from shardinv.cli.demo.outcome import Check, Outcome
from shardinv.cli.demo.reference import Reference
from shardinv.cli.demo.report import print_header, print_summary, write_outputs
from shardinv.cli.demo.scene import Scene, load_scene
from shardinv.cli.demo.settings import DemoSettings
from shardinv.cli.demo.track import follow
from shardinv.cli.ranks import Layout, open_context
from shardinv.geometry import imbalance
from shardinv.problems import (
    MultiFrame,
    load_denoiser,
    noise_schedule,
    normalised_adjoint,
    plug_and_play,
    psnr,
    step_size,
)
from shardinv.tensor import ShardedTensor


def run_demo(settings: DemoSettings) -> None:
    """Carry out the demo on this rank; rank 0 shows, draws and writes.

    Parameters
    ----------
    settings
        The same on every rank.
    """
    began = time.perf_counter()
    scene = load_scene(settings)
    with open_context(settings.seed, settings.device) as ctx:
        outcome = _reconstruct(settings, scene, ctx, began)
    # Drawing takes rank 0 some seconds more; the other ranks need not wait for it.
    if ctx.is_main:
        files = write_outputs(settings, scene, outcome, began)
        print_summary(outcome, files)
        if settings.saves_every is not None:
            shutil.rmtree(settings.checkpoints, ignore_errors=True)


def _reconstruct(
    settings: DemoSettings, scene: Scene, ctx: DistributedContext, began: float
) -> Outcome:
    problem = MultiFrame(settings.frames, settings.factor, settings.noise, settings.seed)
    sharded = settings.layout is Layout.sharded
    photograph = scene.truth.to(ctx.device)
    channels, spatial = photograph.shape[1], tuple(photograph.shape[2:])
    truth = ctx.shard(photograph) if sharded else photograph
    physics = distribute(
        problem.frame,
        ctx,
        num_operators=problem.frames,
        type_object="linear_physics",
        # Frames are blurred and decimated by space, so that only halos are sent, or each by the
        # rank that has its operator.
        strategy="space" if sharded else "operator",
    )
    fidelity = distribute(L2(), ctx)
    denoiser = distribute(
        load_denoiser(settings.denoiser, channels=channels, device=ctx.device),
        ctx,
        patch_size=settings.tile,
        overlap=settings.overlap,
        max_batch_size=settings.batch,
    )
    sigmas = noise_schedule(*settings.sigmas, settings.iterations)
    with torch.no_grad():
        y = physics(truth) if sharded else physics(truth, gather=False)
        # Smaller than the image where it can be: the norm of a convolution hardly depends on it.
        side = min(scene.side, 32 * settings.factor)
        step = step_size(physics, torch.zeros(1, channels, side, side, device=ctx.device))
        start = normalised_adjoint(physics, y, truth)
        # For the figure and the undistributed run; the blocks use `y`, which stays where it is.
        frames = _whole_frames(y, ctx, every=settings.check) if sharded else y.gather()
        bicubic = interpolate(
            frames[0], scale_factor=settings.factor, mode="bicubic", align_corners=False
        )
    sharding = truth.sharding if isinstance(truth, ShardedTensor) else None
    schedule = denoiser.schedule(spatial, sharding)
    outcome = Outcome(
        frame=frames[0].cpu(),
        bicubic=bicubic.clamp(0, 1).cpu(),
        bicubic_db=psnr(bicubic, photograph),
        start_db=psnr(start, truth),
        step=step,
        sigmas=sigmas,
        ranks=ctx.world_size,
        backend=ctx.backend,
        device=_device_name(ctx.device),
        threads=torch.get_num_threads(),
        tiles=schedule.grid,
        imbalance=imbalance(schedule.grid.costs, schedule.hands),
    )
    if sharding is not None:
        outcome.mesh = sharding.mesh
        outcome.box = max((box.shape for box in sharding.partition.boxes), key=prod)
    image, track = load_checkpoint(settings, scene.side, ctx, start)
    outcome.resumed_after = len(track.seconds)
    reference = None
    if ctx.is_main:
        print_header(settings, scene, outcome)
        if settings.check:
            reference = Reference(settings, problem, frames, photograph, step, sigmas)
            reference.catch_up(outcome.resumed_after)
    del frames, bicubic, photograph
    outcome.setup_seconds = time.perf_counter() - began

    remaining = sigmas[outcome.resumed_after :]
    loop = plug_and_play(image, y, physics, fidelity, denoiser, step, remaining)
    outcome.reconstructing, image = follow(
        "reconstructing",
        loop,
        image,
        truth,
        settings.iterations,
        ctx,
        then=reference.compare if reference is not None else None,
        whole=sharded and settings.check,
        track=track,
        save=saver(settings, scene.side, ctx),
    )
    outcome.reconstruction = ctx.gather(image).clamp(0, 1).cpu()
    if reference is not None and reference.seconds:
        outcome.check = Check(
            reference.psnr_differences, reference.relative_errors, reference.seconds
        )
    loop = plug_and_play(start, y, physics, fidelity, None, step, sigmas)
    outcome.without_denoiser, _ = follow(
        "without denoiser", loop, start, truth, settings.iterations, ctx
    )
    outcome.tracks = [outcome.reconstructing] * ctx.world_size
    ctx.all_gather_object(outcome.tracks, outcome.reconstructing)
    return outcome


def _whole_frames(y: Any, ctx: DistributedContext, *, every: bool) -> TensorList:
    """Sharded frames gathered, the first or all of them."""
    return TensorList([ctx.gather(y[index]) for index in range(len(y) if every else 1)])


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
