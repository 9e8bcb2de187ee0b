"""DeepInverse's metrics of a sharded image are the numbers of the whole, the same on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.loss.metric import (
    L1L2,
    MAE,
    MSE,
    NMSE,
    PSNR,
    SNR,
    SSIM,
    CosineSimilarity,
    LpNorm,
    SpectralAngleMapper,
)

from shardinv import DistributedContext
from shardinv.tensor import ShardedTensor
from tests.harness import WorkerPool, assert_same_on_every_rank
from tests.tensor.algorithms import LAYOUTS, SHAPE, Case, compare

#: One that a window of SSIM, eleven wide, fits into.
SMALL = (2, 3, 12, 11)

PLAIN: dict[str, Any] = {
    "PSNR": PSNR,
    "PSNR of the brightest": lambda **k: PSNR(max_pixel=None, **k),
    "PSNR inside": lambda **k: PSNR(center_crop=5, **k),
    "MSE": MSE,
    "NMSE": NMSE,
    "MAE": MAE,
    "L1L2": L1L2,
    "SNR": SNR,
    "LpNorm": LpNorm,
    "CosineSimilarity": CosineSimilarity,
    "SpectralAngleMapper": SpectralAngleMapper,
    "SSIM": SSIM,
    "SSIM with a step": lambda **k: SSIM(max_pixel=2.0, **k),
}


def measure(make: Any, **options: Any) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        result = make(**options)(0.8 * x + 0.1 * mask, x)
        assert not isinstance(result, ShardedTensor)
        return result

    return run


def window_bytes(shape: tuple[int, ...]) -> int:
    """SSIM filters five images at once, and needs five rows of each on either side."""
    return 5 * 2 * 5 * 8 * shape[0] * shape[1] * (max(shape[2:]) + 10)


def run_metrics(
    ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]
) -> dict[str, list[torch.Tensor]]:
    cases: dict[str, Case] = {}
    for name, make in PLAIN.items():
        cases[name] = measure(make)
        cases[f"{name}, mean"] = measure(make, reduction="mean")
        cases[f"{name}, normalised"] = measure(make, norm_inputs="min_max")
    return compare(ctx, cases, mesh, shape, halo=window_bytes(shape))


@pytest.mark.parametrize(("world_size", "mesh", "shape"), LAYOUTS)
def test_metrics(pool: WorkerPool, world_size: int, mesh: Any, shape: Any) -> None:
    sizes = SHAPE if shape == SHAPE else SMALL
    assert_same_on_every_rank(pool.run(run_metrics, mesh, sizes, world_size=world_size))


def slope(make: Any) -> Case:
    def run(x: torch.Tensor, mask: torch.Tensor) -> Any:
        leaf = (0.8 * x + 0.1 * mask).requires_grad_()
        return torch.autograd.grad(make()(leaf, x).sum(), leaf)[0]

    return run


def run_slopes(ctx: DistributedContext, mesh: Any, shape: tuple[int, ...]) -> None:
    cases = {name: slope(PLAIN[name]) for name in ("L1L2", "MAE", "NMSE", "SSIM")}
    compare(ctx, cases, mesh, shape, halo=window_bytes(shape))


@pytest.mark.parametrize(("world_size", "mesh"), [(1, None), (2, (2, 1)), (4, (2, 2))])
def test_gradients_of_metrics(pool: WorkerPool, world_size: int, mesh: Any) -> None:
    pool.run(run_slopes, mesh, SHAPE, world_size=world_size)
