"""What is trained: operators and an unrolled solver, distributed."""

from __future__ import annotations

from typing import Any

import deepinv.optim
import torch
from deepinv.models import DnCNN
from deepinv.optim import BaseOptim
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from deepinv.physics import GaussianNoise, Inpainting
from torch import nn

from shardinv import DistributedContext, distribute
from shardinv.cli.ranks import Layout
from shardinv.cli.train.settings import TrainSettings
from shardinv.problems import MultiFrame, load_denoiser


def make_physics(settings: TrainSettings, ctx: DistributedContext) -> Any:
    """The operators, by space where images are sharded."""
    problem, side = settings.problem, settings.data.side
    if problem.kind == "inpainting":
        draw = torch.Generator().manual_seed(settings.data.seed)
        mask = (torch.rand(1, side, side, generator=draw) >= problem.missing).float()
        noise = GaussianNoise(problem.noise) if problem.noise else None
        operator = Inpainting((3, side, side), mask=mask, noise_model=noise, device=ctx.device)
        return distribute(operator, ctx)
    frames = MultiFrame(problem.frames, problem.factor, seed=settings.data.seed)

    def frame(index: int, device: torch.device, _: Any) -> Any:
        operator = frames.frame(index, device)
        # From torch's generator, which is seeded for each batch: a frame's own would have to be
        # where it was for a run that goes on.
        operator.set_noise_model(GaussianNoise(problem.noise))
        return operator

    return distribute(
        frame,
        ctx,
        num_operators=frames.frames,
        type_object="linear_physics",
        strategy="space" if settings.layout.kind is Layout.sharded else "operator",
    )


def make_network(settings: TrainSettings) -> nn.Module:
    """The network, trainable; a new one begins near the identity."""
    model = settings.model
    if model.network != "dncnn":
        return load_denoiser(model.network).requires_grad_("network" in model.trained)
    torch.manual_seed(settings.data.seed)
    network = DnCNN(3, 3, depth=model.depth, nf=model.width, pretrained=None)
    with torch.no_grad():
        network.out_conv.weight.mul_(0.1)
    return network.requires_grad_("network" in model.trained)


def make_solver(settings: TrainSettings) -> BaseOptim:
    """The unrolled solver, undistributed: into this the weights load that a run has written."""
    model = settings.model
    return getattr(deepinv.optim, model.solver)(
        data_fidelity=L2(),
        prior=PnP(make_network(settings)),
        stepsize=[model.stepsize] * model.iterations,
        sigma_denoiser=model.sigma,
        max_iter=model.iterations,
        unfold=True,
        trainable_params=["stepsize"] if "stepsize" in model.trained else [],
    )


def make_model(settings: TrainSettings, ctx: DistributedContext) -> BaseOptim:
    """The unrolled solver, distributed."""
    return distribute(
        make_solver(settings),
        ctx,
        patch_size=settings.layout.tile,
        overlap=settings.layout.overlap,
        checkpoint=settings.memory.checkpoint,
        memory=settings.memory.budget,
    )


def make_optimizer(settings: TrainSettings, model: nn.Module) -> tuple[Any, Any]:
    """The optimizer, and what lowers its learning rate by a cosine, epoch by epoch."""
    chosen = settings.optimizer
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[chosen.kind]
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = kind(wanted, lr=chosen.learning_rate)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, max(1, chosen.epochs - 1), settings.last_learning_rate
    )
