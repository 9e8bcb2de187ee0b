"""How good a reconstruction is. Values are clamped to [0, 1] first, as a picture would be."""

from __future__ import annotations

import math

import torch
from deepinv.loss.metric import SSIM
from torch import Tensor


def psnr(image: Tensor, truth: Tensor) -> float:
    """Peak signal-to-noise ratio in dB for images in [0, 1]; infinite where they are equal."""
    # In double precision: differences of thousandths of a dB are compared.
    error = (image.clamp(0, 1) - truth).square().mean(dtype=torch.float64).item()
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(image: Tensor, truth: Tensor) -> float:
    """Structural similarity (Wang et al. 2004) of images ``(1, C, H, W)`` in [0, 1]."""
    value: Tensor = SSIM()(image.clamp(0, 1), truth)
    return float(value.mean())


def relative_error(image: Tensor, reference: Tensor) -> float:
    """Euclidean distance over the reference's norm."""
    distance = torch.linalg.vector_norm(image - reference, dtype=torch.float64)
    return float(distance / torch.linalg.vector_norm(reference, dtype=torch.float64))
