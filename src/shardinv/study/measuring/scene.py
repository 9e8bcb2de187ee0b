"""The problem of a point, undistributed: truth, operators and network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shardinv.io import PHOTOGRAPHS, read_image, shipped_file
from shardinv.problems import (
    MultiFrame,
    MultiView,
    centre_square,
    inflate,
    load_denoiser,
    simulated_volume,
)
from shardinv.study.plan.point import Point


def truth_of(point: Point) -> Tensor:
    """The true image ``(1, 3, size, size)``, or volume ``(1, 1, size, size, size)``."""
    if point.problem == "volume":
        return simulated_volume(point.size, point.seed)
    path = shipped_file(point.photograph) if point.photograph in PHOTOGRAPHS else point.photograph
    return centre_square(read_image(path).expand(-1, 3, -1, -1), point.size)[0]


def problem_of(point: Point) -> MultiFrame | MultiView:
    """The recipe of the operators."""
    if point.problem == "volume":
        return MultiView(point.frames, noise=point.noise, seed=point.seed)
    return MultiFrame(point.frames, point.factor, point.noise, point.seed)


def network_of(point: Point, device: torch.device) -> Any:
    """The network, for images or for volumes."""
    if point.problem == "volume":
        return inflate(load_denoiser(point.network, channels=1, device=device))
    return load_denoiser(point.network, device=device)
