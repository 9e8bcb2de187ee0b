"""The options of ``shardinv demo``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shardinv.cli.ranks import Device, Layout

# Smaller than this there is no room for the kernels, the zooms and the window of SSIM.
SMALLEST_SIZE = 64
_DEFAULT_SIZE = 1024


class DemoSettings(BaseModel):
    """What the demo does. Lengths are in pixels of the fine image, whose values lie in [0, 1]."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    photograph: str = Field(
        "picos", description="A photograph of yours, or one that ships: picos, stream."
    )
    size: int | None = Field(
        None,
        ge=SMALLEST_SIZE,
        description="Side of the square cut from its middle, in pixels; by default 1024, or the "
        "whole of a smaller photograph. A larger one is made by mirroring.",
    )
    iterations: int = Field(12, ge=1, description="Number of iterations.")
    processes: int | None = Field(
        None, ge=1, description="Number of processes; by default one a GPU, else two."
    )
    device: Device = Field(Device.auto, description="Where to compute: auto, cpu or gpu.")
    layout: Layout = Field(
        Layout.replicated,
        description="replicated: every process holds the image; sharded: each holds a box of it.",
    )
    tile: int = Field(512, ge=8, description="Largest side of a tile without its halo.")
    overlap: int = Field(
        24, ge=0, description="Halo on each interior side of a tile; 24 is all that FFDNet sees."
    )
    batch: int | None = Field(
        None, ge=1, description="Tiles in one call of the network; by default chosen."
    )
    denoiser: str = Field(
        "ffdnet", description="ffdnet, drunet (small, ours), or a weights file of yours."
    )
    frames: int = Field(8, ge=1, description="Number of coarse frames.")
    factor: int = Field(2, ge=1, le=8, description="Ratio of fine to coarse resolution.")
    noise: float = Field(
        0.03, ge=0, le=1, description="Standard deviation of the noise in a frame."
    )
    sigma: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Strength of the denoiser at the first iteration; by default half the noise.",
    )
    sigma_end: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Its strength at the last iteration; by default 0.8 of the first.",
    )
    seed: int = Field(0, ge=0, description="Seed of the noise.")
    check: bool = Field(
        False,
        description="Compare with the undistributed run of the same algorithm, at every iteration.",
    )
    checkpoint_every: int | None = Field(
        None,
        ge=1,
        description="Save the state of the run every so many iterations; by default never, or at "
        "every one with --resume. What was saved is removed at the end.",
    )
    resume: bool = Field(
        False,
        description="Go on where a run that did not end was saved last, with the same number of "
        "processes or another; at the beginning if none was.",
    )
    output: Path = Field(Path("outputs/demo"), description="Folder for what is written.")

    @model_validator(mode="after")
    def _halo_fits_tile(self) -> Self:
        if self.overlap > self.tile:
            raise ValueError(
                f"--overlap {self.overlap} is wider than --tile {self.tile}: most of the work "
                "would be done more than twice; give a larger tile or a smaller overlap"
            )
        return self

    @property
    def sigmas(self) -> tuple[float, float]:
        """Strength of the denoiser at the first and the last iteration."""
        # Without noise the denoiser still has the aliasing to remove.
        first = self.sigma if self.sigma is not None else max(0.5 * self.noise, 0.002)
        return first, self.sigma_end if self.sigma_end is not None else 0.8 * first

    @property
    def checkpoints(self) -> Path:
        """Folder for the state of a run that has not ended."""
        return self.output / "checkpoints"

    @property
    def saves_every(self) -> int | None:
        """After how many iterations the state is saved; None for never."""
        return self.checkpoint_every or (1 if self.resume else None)

    def side(self, height: int, width: int) -> int:
        """Side of the square for a photograph of the given size, a multiple of what is needed.

        Multiples of the factor can be decimated; FFDNet needs even sides.
        """
        side = self.size if self.size is not None else min(_DEFAULT_SIZE, height, width)
        return side - side % math.lcm(self.factor, 2)
