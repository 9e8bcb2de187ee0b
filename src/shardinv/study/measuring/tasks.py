"""What is done again and again: an iteration of plug-and-play, or a step of training."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from torch import Tensor

from shardinv.study.measuring.build import Blocks, tiling_of
from shardinv.study.plan.point import Point


class Task(Protocol):
    """A step at a time.

    Attributes
    ----------
    image
        The last iterate, or what the trained model gave last.
    """

    image: Tensor

    def step(self, number: int, mark: Callable[[str], None]) -> None:
        """Do step ``number``; ``mark`` is called at the end of each stage, with its name."""


def task_of(point: Point, blocks: Blocks) -> Task:
    """The task of a point."""
    return Training(point, blocks) if point.task == "train" else Reconstruction(point, blocks)


class Reconstruction:
    """Plug-and-play by proximal gradient descent (see `shardinv.problems.plug_and_play`)."""

    def __init__(self, point: Point, blocks: Blocks) -> None:
        self._blocks, self._point = blocks, point
        self.image = blocks.start

    def step(self, number: int, mark: Callable[[str], None]) -> None:
        """An iteration; past the last one the denoiser's strength stays."""
        blocks = self._blocks
        sigma = blocks.sigmas[min(number, len(blocks.sigmas) - 1)]
        with torch.no_grad():
            x = self.image
            x = x - blocks.step * blocks.fidelity.grad(x, blocks.y, blocks.physics)
            mark("physics")
            with _autocast(self._point):
                denoised = blocks.denoiser(x, sigma)
            self.image = denoised.to(x.dtype)
            mark("denoiser")


class Training:
    """An unrolled proximal gradient descent learns its step sizes and network on the one image."""

    def __init__(self, point: Point, blocks: Blocks) -> None:
        self._blocks, self._point = blocks, point
        self.image = blocks.start
        model: Any = PGD(
            data_fidelity=L2(),
            prior=PnP(blocks.network.requires_grad_(True)),
            stepsize=[blocks.step] * point.unrolled,
            sigma_denoiser=point.sigma_start,
            max_iter=point.unrolled,
            unfold=True,
            trainable_params=["stepsize"],
        )
        if blocks.ctx is not None:
            model = importlib.import_module(point.system).distribute(
                model, blocks.ctx, **tiling_of(point), checkpoint_batches=point.checkpoint
            )
        self._model = model.train()
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(self, number: int, mark: Callable[[str], None]) -> None:
        """Forward, backward, and an update by Adam."""
        blocks = self._blocks
        self._optimizer.zero_grad()
        with _autocast(self._point):
            output = self._model(blocks.y, blocks.physics)
        loss = (output - blocks.truth).square().mean()
        mark("forward")
        loss.backward()
        mark("backward")
        self._optimizer.step()
        self.image = output.detach()
        mark("update")


def _autocast(point: Point) -> contextlib.AbstractContextManager[Any]:
    if point.precision == "float32":
        return contextlib.nullcontext()
    kind = "cuda" if point.device == "gpu" else "cpu"
    return torch.autocast(kind, dtype=getattr(torch, point.precision))
