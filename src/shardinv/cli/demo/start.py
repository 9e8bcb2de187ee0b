"""Checks what can be checked before any process is started, then starts or joins the ranks."""

from __future__ import annotations

import os
from sys import stderr

import torch

from shardinv.cli.demo.run import run_demo
from shardinv.cli.demo.scene import load_photograph
from shardinv.cli.demo.settings import SMALLEST_SIZE, DemoSettings
from shardinv.cli.errors import UsageError
from shardinv.cli.launch import default_processes, launched_by_other, run_workers
from shardinv.cli.ranks import Device
from shardinv.context.environment import detect_launch
from shardinv.problems import MultiFrame, load_denoiser


def start_demo(settings: DemoSettings) -> int:
    """Reconstruct a photograph from several coarse frames, on several processes.

    Eight frames of a photograph are simulated: moved by fractions of a pixel, blurred, decimated,
    noisy. Plug-and-play with a pretrained denoiser puts them together again. Writes the
    reconstruction, two figures and result.json.

    Under torchrun, srun or mpirun it joins their processes; else it starts its own.
    """
    joined = launched_by_other()
    try:
        check(settings)
    except UsageError as error:
        raise UsageError(
            str(error), told=not joined or detect_launch(os.environ).rank == 0
        ) from None
    if joined:
        run_demo(settings)
        return 0
    processes = settings.processes or default_processes(settings.device)
    if processes == 1:
        run_demo(settings)
        return 0
    status = run_workers(
        "demo", settings, processes, log=settings.output / "error.txt", lighter="a smaller --size"
    )
    if status and settings.checkpoints.is_dir():
        print("What was done so far is saved: the same command with --resume goes on", file=stderr)
    return status


def check(settings: DemoSettings) -> None:
    """Find mistakes in the settings that need a look at files or devices.

    Raises
    ------
    UsageError
        Saying what is wrong and what to do.
    """
    image = load_photograph(settings.photograph)
    side = settings.side(*image.shape[-2:])
    if side < SMALLEST_SIZE:
        raise UsageError(
            f"--photograph {settings.photograph} is too small: its shorter side has "
            f"{min(image.shape[-2:])} pixels, {SMALLEST_SIZE} are needed"
        )
    radius = MultiFrame(factor=settings.factor).radius
    if side <= 2 * radius:
        raise UsageError(
            f"--size {side} is too small for --factor {settings.factor}, whose kernels are "
            f"{2 * radius + 1} pixels wide; give a larger size or a smaller factor"
        )
    if settings.overlap >= side and settings.tile < side:
        raise UsageError(
            f"--overlap {settings.overlap} is as wide as the image of {side} pixels; give a "
            "smaller overlap"
        )
    try:
        load_denoiser(settings.denoiser, channels=image.shape[1])
    except ValueError as error:
        raise UsageError(f"--denoiser: {error}") from None
    _check_devices(settings)
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output {settings.output} can't be made or is no folder: {error}"
        ) from None
    if not os.access(settings.output, os.W_OK):
        raise UsageError(f"--output {settings.output} can't be written to")


def _check_devices(settings: DemoSettings) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if settings.device is Device.gpu and gpus == 0:
        raise UsageError("--device gpu: torch sees no GPU here; use --device cpu")
    launch = detect_launch(os.environ)
    if launch.launcher != "none":
        if settings.processes not in (None, launch.world_size):
            raise UsageError(
                f"--processes {settings.processes}, but {launch.launcher} started "
                f"{launch.world_size}; leave the option away"
            )
    elif settings.device is not Device.cpu and 0 < gpus < (settings.processes or 1):
        raise UsageError(
            f"--processes {settings.processes}, but there are {gpus} GPUs: give at most as many, "
            "or --device cpu"
        )
