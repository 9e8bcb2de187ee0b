"""A point of a study: one problem, solved by one system on so many ranks."""

from __future__ import annotations

import hashlib
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Point(BaseModel):
    """What is measured in processes of its own. Lengths in pixels, image values in [0, 1]."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    system: Literal["shardinv", "deepinv.distributed", "deepinv"] = Field(
        "shardinv",
        description="shardinv; deepinv.distributed, for comparison; deepinv, undistributed.",
    )
    ranks: int = Field(1, ge=1, description="Number of processes.")
    size: int = Field(512, ge=16, description="Side of the square image.")
    photograph: str = Field("picos", description="The truth: one that ships, or a path.")
    frames: int = Field(8, ge=1, description="Number of operators.")
    factor: int = Field(2, ge=1, le=8, description="Ratio of fine to coarse resolution.")
    noise: float = Field(0.03, ge=0, le=1, description="Standard deviation of the noise.")
    seed: int = Field(0, ge=0, description="Of the noise.")
    layout: Literal["replicated", "sharded"] = Field(
        "replicated", description="Whether every rank holds the image, or a box of it."
    )
    network: Literal["ffdnet", "drunet"] = Field("ffdnet", description="Weights that ship.")
    tile: int | None = Field(
        256, ge=8, description="Largest side of a tile without its halo; null: the whole image."
    )
    overlap: int = Field(24, ge=0, description="Halo on each interior side of a tile.")
    batch: int | None = Field(None, ge=1, description="Most tiles in one call of the network.")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Of the network; others than float32 by autocast."
    )
    sigma_start: float = Field(0.035, gt=0, le=1, description="Denoiser's strength at first.")
    sigma_end: float = Field(0.012, gt=0, le=1, description="And at the last iteration.")
    iterations: int = Field(10, ge=1, description="How many.")
    repeat: int = Field(0, ge=0, description="Number of the repetition.")
    threads: int = Field(1, ge=1, description="Threads of a rank on the CPU.")
    device: Literal["cpu", "gpu"] = Field("cpu", description="Where to compute.")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.size % (2 * self.factor):
            raise ValueError(
                f"size {self.size} must be a multiple of {2 * self.factor}: twice the factor"
            )
        if self.system == "deepinv" and self.ranks > 1:
            raise ValueError("undistributed DeepInverse runs on one rank: ranks must be 1")
        if self.layout == "sharded" and self.system != "shardinv":
            raise ValueError(f"{self.system} has no sharded images: layout must be replicated")
        if self.tile is not None and self.overlap > self.tile:
            raise ValueError(f"overlap {self.overlap} is wider than tile {self.tile}")
        return self

    @property
    def key(self) -> str:
        """Names the point: the same for the same settings, whatever their order."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
