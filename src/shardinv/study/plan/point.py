"""A point of a study: one problem, solved by one system on so many ranks."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_OF_TILES = ("tile", "overlap", "batch")


class Point(BaseModel):
    """What is measured in processes of its own. Lengths in pixels, image values in [0, 1]."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    system: Literal["shardinv", "deepinv.distributed", "deepinv"] = Field(
        "shardinv",
        description="shardinv; deepinv.distributed, for comparison; deepinv, undistributed.",
    )
    problem: Literal["photograph", "volume"] = Field(
        "photograph",
        description="Multi-frame super-resolution in 2-D; multi-view deconvolution in 3-D.",
    )
    task: Literal["reconstruct", "train"] = Field(
        "reconstruct", description="Plug-and-play, or training of an unrolled solver on one image."
    )
    ranks: int = Field(1, ge=1, description="Number of processes.")
    size: int = Field(512, ge=16, description="Side of the square image, or of the cube.")
    photograph: str = Field("picos", description="The truth in 2-D: one that ships, or a path.")
    frames: int = Field(8, ge=1, description="Number of operators: frames, or views of a volume.")
    factor: int = Field(2, ge=1, le=8, description="Ratio of fine to coarse resolution in 2-D.")
    noise: float = Field(0.03, ge=0, le=1, description="Standard deviation of the noise.")
    seed: int = Field(0, ge=0, description="Of the noise, and of a simulated volume.")
    layout: Literal["replicated", "sharded"] = Field(
        "replicated", description="Whether every rank holds the image, or a box of it."
    )
    network: str = Field(
        "ffdnet",
        min_length=1,
        description="ffdnet or drunet, which ship; drunet-full, DeepInverse's own, which is "
        "downloaded; or a file of weights. For volumes a DRUNet.",
    )
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
    iterations: int = Field(10, ge=1, description="How many; of training, how many steps.")
    unrolled: int = Field(3, ge=1, description="Iterations of the solver that is trained.")
    checkpoint: Literal["auto", "always", "never"] = Field(
        "auto", description="Whether training computes activations of tiles anew."
    )
    quality: bool = Field(
        False,
        description="Whether SSIM and the agreement with reference runs are worked out at every "
        "iteration. The reference runs, on one rank, are then points too.",
    )
    profile: bool = Field(
        False, description="Whether one more iteration runs under PyTorch's profiler."
    )
    repeat: int = Field(0, ge=0, description="Number of the repetition.")
    threads: int = Field(1, ge=1, description="Threads of a rank on the CPU.")
    device: Literal["cpu", "gpu"] = Field("cpu", description="Where to compute.")

    @model_validator(mode="before")
    @classmethod
    def _without_tiles(cls, given: Any) -> Any:
        """Undistributed, the network sees the whole image: whatever tiles are named, it is one."""
        if isinstance(given, dict) and given.get("system") == "deepinv":
            return {name: value for name, value in given.items() if name not in _OF_TILES}
        return given

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        flat = self.problem == "photograph"
        if flat and self.size % (2 * self.factor):
            raise ValueError(
                f"size {self.size} must be a multiple of {2 * self.factor}: twice the factor"
            )
        if not flat and self.network == "ffdnet":
            raise ValueError("network must be drunet for a volume: ffdnet is for images alone")
        if self.system == "deepinv" and self.ranks > 1:
            raise ValueError("undistributed DeepInverse runs on one rank: ranks must be 1")
        if self.layout == "sharded" and self.system != "shardinv":
            raise ValueError(f"{self.system} has no sharded images: layout must be replicated")
        if self.tile is not None and self.overlap > self.tile:
            raise ValueError(f"overlap {self.overlap} is wider than tile {self.tile}")
        if self.quality and self.task == "train":
            raise ValueError("quality is that of a reconstruction: a training step has none")
        return self

    @property
    def key(self) -> str:
        """Names the point: the same for the same settings, whatever their order.

        A setting that is as by default is left out, so that points keep their names where new
        settings come.
        """
        told = self.model_dump_json(exclude_defaults=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def pixels(self) -> int:
        """Of the image, or voxels of the volume."""
        return int(self.size ** (2 if self.problem == "photograph" else 3))

    @property
    def references(self) -> dict[str, Point]:
        """The runs that its quality is compared with: nothing distributed, and only the tiles."""
        if not self.quality:
            return {}
        plain = {"ranks": 1, "layout": "replicated", "repeat": 0, "precision": "float32"}
        settings = {**self.model_dump(), **plain}
        found = {"untiled": Point(**{**settings, "system": "deepinv"})}
        if self.system != "deepinv":
            found["tiled"] = Point(**{**settings, "system": "shardinv"})
        return found

    @property
    def is_reference(self) -> bool:
        """Whether others may be compared with it, so that its iterates are kept."""
        return self in self.references.values()
