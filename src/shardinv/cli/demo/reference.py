"""The same algorithm, undistributed: DeepInverse's own objects, the network on the whole image."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from deepinv.optim.data_fidelity import L2
from torch import Tensor

from shardinv.cli.demo.settings import DemoSettings
from shardinv.cli.launch import cores
from shardinv.problems import (
    MultiFrame,
    load_denoiser,
    normalised_adjoint,
    plug_and_play,
    psnr,
    relative_error,
)


class Reference:
    """Runs alongside on rank 0, one iteration at a time, and keeps the distances.

    It is given the measurements and the step size of the distributed run, and nothing else.

    Parameters
    ----------
    settings
        Of the demo.
    problem
        The problem, whose frames are stacked undistributed.
    y
        All measurements.
    truth
        ``(1, C, H, W)``.
    step, sigmas
        Step size, and the denoiser's strength at each iteration.

    Attributes
    ----------
    psnr_differences
        Distance between the PSNR of the two runs after each iteration, in dB.
    relative_errors
        Euclidean distance of the iterates over the norm of this run's.
    seconds
        What each iteration took.
    """

    def __init__(
        self,
        settings: DemoSettings,
        problem: MultiFrame,
        y: Any,
        truth: Tensor,
        step: float,
        sigmas: Sequence[float],
    ) -> None:
        self.truth = truth
        physics = problem.stack(truth.device)
        network = load_denoiser(settings.denoiser, channels=truth.shape[1], device=truth.device)
        with torch.no_grad():
            start = normalised_adjoint(physics, y, truth)
        self._loop = plug_and_play(start, y, physics, L2(), network, step, sigmas)
        self.psnr_differences: list[float] = []
        self.relative_errors: list[float] = []
        self.seconds: list[float] = []

    def catch_up(self, iterations: int) -> None:
        """Do the iterations that an earlier run of the demo did."""
        for _ in range(iterations):
            next(self._loop)

    def compare(self, image: Tensor, image_db: float) -> None:
        """Do one iteration and compare its iterate with the distributed one, of known PSNR."""
        threads = torch.get_num_threads()
        # The other ranks are waiting; their cores are free.
        torch.set_num_threads(max(threads, cores()))
        try:
            began = time.perf_counter()
            expected = next(self._loop)
            error = relative_error(image, expected)
            self.seconds.append(time.perf_counter() - began)
        finally:
            torch.set_num_threads(threads)
        self.psnr_differences.append(abs(image_db - psnr(expected, self.truth)))
        self.relative_errors.append(error)
