"""Multi-view deconvolution of a volume, as in light-sheet microscopy: each view blurs one axis.

Like `multiframe`, it is a recipe that holds numbers: a view's operator is built where it is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from deepinv.physics import Blur, GaussianNoise, StackedLinearPhysics, stack
from torch import Tensor


@dataclass(frozen=True)
class MultiView:
    """Deconvolution of a volume ``(B, 1, D, H, W)`` with values in [0, 1] from several views.

    View ``i`` looks from a direction of its own, turned about the row axis. Its point spread is a
    Gaussian three times as long along that direction as across it. Noise is Gaussian. Together the
    views are sharp in every direction in which one of them is.

    Parameters
    ----------
    views
        Number of views.
    width
        Standard deviation of the point spread across the direction of view, in voxels.
    noise
        Standard deviation of the noise, values in [0, 1].
    seed
        Seed of the noise; each view draws from a generator of its own.
    """

    views: int = 4
    width: float = 0.8
    noise: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        if self.views < 1:
            raise ValueError(f"views must be at least 1, got {self.views}")
        if self.width <= 0:
            raise ValueError(f"width must be positive, got {self.width}")
        if self.noise < 0:
            raise ValueError(f"noise must be at least 0, got {self.noise}")

    def kernel(self, index: int) -> Tensor:
        """Point spread of view ``index``, ``(1, 1, d, h, w)``, sums to one."""
        if not 0 <= index < self.views:
            raise IndexError(f"view {index} of {self.views}: the last one is {self.views - 1}")
        radius = math.ceil(6 * self.width)
        grid = torch.arange(-radius, radius + 1, dtype=torch.float64)
        depth, rows, columns = torch.meshgrid(grid, grid, grid, indexing="ij")
        angle = math.pi * index / self.views
        along = math.cos(angle) * depth + math.sin(angle) * columns
        across = -math.sin(angle) * depth + math.cos(angle) * columns
        squares = (along / 3) ** 2 + across**2 + rows**2
        kernel = torch.exp(-0.5 * squares / self.width**2)
        return (kernel / kernel.sum())[None, None].float()

    def frame(
        self,
        index: int,
        device: torch.device | str = "cpu",
        factory_kwargs: dict[str, Any] | None = None,
    ) -> Blur:
        """Build the operator of view ``index``: a factory for `shardinv.distribute`."""
        rng = torch.Generator(device).manual_seed(self.seed * 1_000_003 + index)
        noise = GaussianNoise(self.noise, rng=rng)
        return Blur(
            self.kernel(index),
            padding="circular",
            use_fft=True,  # 11³ taps: a hundred times faster than summing them
            device=device,
            noise_model=noise,
        )

    def stack(self, device: torch.device | str = "cpu") -> StackedLinearPhysics:
        """All views in one undistributed `deepinv` stack, e.g. for comparison."""
        return stack(*(self.frame(index, device) for index in range(self.views)))


def simulated_volume(side: int, seed: int = 0) -> Tensor:
    """Cells: soft shells with nuclei and grains in them, of many sizes.

    Parameters
    ----------
    side
        Voxels along each of the three axes.
    seed
        Which volume. The same one is drawn finer where ``side`` is larger.

    Returns
    -------
    Tensor
        Values in [0, 1], shape ``(1, 1, side, side, side)``.
    """
    draw = torch.Generator().manual_seed(seed)
    volume = torch.zeros(side, side, side)
    step = 1 / side
    axis = (torch.arange(side) + 0.5) * step
    for _ in range(24):
        centre, radius = (
            torch.rand(3, generator=draw),
            0.06 + 0.1 * float(torch.rand(1, generator=draw)),
        )
        nucleus, brightness = torch.rand(2, generator=draw).tolist()
        boxes = [_reach(float(c), 1.1 * radius, side) for c in centre]
        part = tuple(slice(*box) for box in boxes)
        squares = [((axis[s] - c) / radius) ** 2 for s, c in zip(part, centre, strict=True)]
        distance = (
            squares[0][:, None, None] + squares[1][None, :, None] + squares[2][None, None, :]
        ).sqrt()
        soft = max(2 * step / radius, 0.04)
        shell = torch.sigmoid((1 - distance) / soft) * torch.sigmoid((distance - 0.85) / soft)
        core = torch.sigmoid((0.3 + 0.2 * nucleus - distance) / soft)
        volume[part] += (0.3 + 0.5 * brightness) * (shell + 0.8 * core + 0.15 * (distance < 1))
    # Grains of the cells' insides, at a quarter of the resolution at least.
    grains = torch.rand(1, 1, 16, 16, 16, generator=draw)
    texture = F.interpolate(grains, (side, side, side), mode="trilinear")[0, 0]
    return (volume * (0.7 + 0.6 * texture)).clamp(0, 1)[None, None]


def _reach(centre: float, radius: float, side: int) -> tuple[int, int]:
    return max(0, math.floor((centre - radius) * side)), min(
        side, math.ceil((centre + radius) * side)
    )
