"""Multi-frame super-resolution: one scene, several coarse frames of it that really differ.

The problem is a recipe: it holds numbers, no tensors, and builds a frame's operator where it is
asked to, so that every rank builds only its own. Solving it is in `plug_and_play`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from deepinv.physics import GaussianNoise, StackedLinearPhysics, stack

from shardinv.problems.blur_downsampling import BlurDownsampling
from shardinv.problems.kernels import shifted_gaussian

# The plastic number: its powers give the low-discrepancy sequence R2 of M. Roberts (2018).
_PLASTIC = 1.3247179572447460


@dataclass(frozen=True)
class FrameOptics:
    """How one frame was taken: all lengths in pixels of the fine image.

    Attributes
    ----------
    shift
        Displacement of the scene, (rows, columns).
    width
        Standard deviations of the blur along its two principal axes.
    angle
        Angle from the row axis to the first principal axis, in radians.
    """

    shift: tuple[float, float]
    width: tuple[float, float]
    angle: float


@dataclass(frozen=True)
class MultiFrame:
    """Multi-frame super-resolution of an image ``(B, C, H, W)`` with values in [0, 1].

    Frame ``i`` moves the scene by a fraction of a coarse pixel, blurs it with an anisotropic
    Gaussian of its own orientation and width, keeps every ``factor``-th pixel and adds Gaussian
    noise. Frame 0 is the reference and is not moved.

    Parameters
    ----------
    frames
        Number of frames.
    factor
        Ratio of fine to coarse resolution.
    noise
        Standard deviation of the noise, image values in [0, 1].
    seed
        Seed of the noise. Frame ``i`` draws from a generator of its own, so the measurements don't
        depend on which rank makes them, nor on how many there are.

    Notes
    -----
    A coarse pixel sits at the centre of the ``factor`` × ``factor`` fine pixels it stands for, as
    `torch.nn.functional.interpolate` has it: bicubic interpolation of frame 0 is aligned with the
    truth to the last fraction of a pixel, and comparing with it is fair.
    """

    frames: int = 8
    factor: int = 2
    noise: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames must be at least 1, got {self.frames}")
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")
        if self.noise < 0:
            raise ValueError(f"noise must be at least 0, got {self.noise}")

    def optics(self, index: int) -> FrameOptics:
        """Shift and blur of frame ``index``, the same at every call.

        Shifts fill the coarse pixel evenly, orientations the half circle, and the two widths vary
        from frame to frame.
        """
        if not 0 <= index < self.frames:
            raise IndexError(f"frame {index} of {self.frames}: the last one is {self.frames - 1}")
        # (k / plastic) mod 1, centred on zero so that frame 0 stays where it is.
        u = (index / _PLASTIC + 0.5) % 1 - 0.5
        v = (index / _PLASTIC**2 + 0.5) % 1 - 0.5
        golden = (index * (math.sqrt(5) - 1) / 2) % 1
        scale = max(self.factor, 2) / 2
        return FrameOptics(
            shift=(self.factor * u, self.factor * v),
            width=(scale * (0.9 + 0.7 * golden), scale * (0.55 + 0.2 * golden)),
            angle=math.pi * index / self.frames,
        )

    @property
    def radius(self) -> int:
        """Half the kernel, the same for all frames: three times the largest width and shift."""
        return math.ceil(3 * 0.8 * max(self.factor, 2) + self.factor - 0.5)

    def frame(
        self,
        index: int,
        device: torch.device | str = "cpu",
        factory_kwargs: dict[str, Any] | None = None,
    ) -> BlurDownsampling:
        """Build the operator of frame ``index`` on a device: a factory for `shardinv.distribute`.

        Returns
        -------
        BlurDownsampling
            Maps ``(B, C, H, W)`` to ``(B, C, H / factor, W / factor)``.
        """
        optics = self.optics(index)
        # Coarse pixel k stands for fine pixels factor*k ... factor*k + factor-1, whose centre lies
        # (factor-1)/2 past the first of them, where decimation samples.
        centre = (self.factor - 1) / 2
        kernel = shifted_gaussian(
            optics.width,
            optics.angle,
            (optics.shift[0] - centre, optics.shift[1] - centre),
            radius=self.radius,
        )
        rng = torch.Generator(device).manual_seed(self.seed * 1_000_003 + index)
        return BlurDownsampling(
            kernel, self.factor, device=device, noise_model=GaussianNoise(self.noise, rng=rng)
        )

    def stack(self, device: torch.device | str = "cpu") -> StackedLinearPhysics:
        """All frames in one undistributed `deepinv` stack, e.g. for comparison."""
        return stack(*(self.frame(index, device) for index in range(self.frames)))
