"""What ``shardinv train`` reads: sections, keys, defaults, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shardinv.cli.ranks import Device, Layout


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Problem(_Section):
    """How measurements come about. Lengths are in pixels of the fine image, values in [0, 1]."""

    kind: Literal["multiframe", "inpainting"] = Field(
        "multiframe",
        description="multiframe: several moved, blurred, coarse, noisy frames; inpainting: pixels "
        "are missing.",
    )
    frames: int = Field(6, ge=1, description="Number of frames.")
    factor: int = Field(2, ge=1, le=8, description="Ratio of fine to coarse resolution.")
    noise: float = Field(0.03, ge=0, le=1, description="Standard deviation of the noise.")
    missing: float = Field(0.5, gt=0, lt=1, description="Part of the pixels that is missing.")


class Model(_Section):
    """The unrolled solver and its network."""

    solver: Literal["PGD", "FISTA", "HQS", "DRS", "ADMM"] = Field(
        "PGD", description="An algorithm of deepinv.optim."
    )
    iterations: int = Field(4, ge=1, description="How many of them.")
    stepsize: float = Field(1.0, gt=0, description="Step size to begin with.")
    sigma: float = Field(0.03, gt=0, le=1, description="Noise level for the network.")
    network: Literal["dncnn", "ffdnet", "drunet"] = Field(
        "dncnn",
        description="dncnn: a new one of the depth and width given; ffdnet, drunet: those that "
        "ship, trained on.",
    )
    depth: int = Field(5, ge=2, description="Layers of a dncnn.")
    width: int = Field(24, ge=1, description="Channels of its layers.")
    trained: tuple[Literal["stepsize", "network"], ...] = Field(
        ("stepsize", "network"), min_length=1, description="What is trained."
    )


class Data(_Section):
    """Squares cut from photographs, by name if they ship, else by path; new noise every time."""

    training: tuple[str, ...] = Field(("stream",), min_length=1, description="To learn from.")
    validation: tuple[str, ...] = Field(("picos",), min_length=1, description="To judge by.")
    side: int = Field(64, ge=16, description="Side of a square.")
    samples: int = Field(48, ge=1, description="Squares in an epoch.")
    validation_samples: int = Field(6, ge=1, description="Squares to judge by.")
    seed: int = Field(0, ge=0, description="Of where they are cut, of their order, of noise.")


class Optimizer(_Section):
    """How weights are changed."""

    kind: Literal["adam", "sgd"] = Field("adam", description="Of torch.optim.")
    learning_rate: float = Field(5e-3, gt=0, description="At the first epoch.")
    last_learning_rate: float | None = Field(
        None, gt=0, description="At the last one, by a cosine; by default a tenth of the first."
    )
    epochs: int = Field(12, ge=1, description="How often every sample is seen.")
    batch: int = Field(4, ge=1, description="Samples in a step.")
    clip: float | None = Field(None, gt=0, description="Largest norm of the gradient.")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: under autocast."
    )


class LayoutSettings(_Section):
    """Who holds what, and who computes what."""

    kind: Layout = Field(
        Layout.replicated,
        description="replicated: every process holds the images; sharded: each a box of them.",
    )
    tile: int = Field(256, ge=8, description="Largest side of a tile without its halo.")
    overlap: int = Field(24, ge=0, description="Halo on each interior side of a tile.")
    processes: int | None = Field(
        None, ge=1, description="Number of processes; by default one a GPU, else two."
    )
    device: Device = Field(Device.auto, description="auto, cpu or gpu.")


class Memory(_Section):
    """What the backward pass computes anew to save memory."""

    checkpoint: Literal["auto", "never", "tiles", "iterations", "both"] = Field(
        "auto", description="auto: the fastest that fits."
    )
    budget: str | None = Field(
        None, description="What a process may take, as 8GB; by default most of what is left."
    )


class TrainSettings(_Section):
    """All of a training run."""

    problem: Problem = Problem.model_validate({})
    model: Model = Model.model_validate({})
    data: Data = Data.model_validate({})
    optimizer: Optimizer = Optimizer.model_validate({})
    layout: LayoutSettings = LayoutSettings.model_validate({})
    memory: Memory = Memory.model_validate({})
    output: Path = Field(Path("outputs/train"), description="Folder for what is written.")
    checkpoint_every: int = Field(1, ge=1, description="Epochs between two saved states.")
    resume: bool = Field(False, description="Go on where a run that did not end was saved last.")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        factor = self.problem.factor if self.problem.kind == "multiframe" else 1
        if self.data.side % (2 * factor):
            raise ValueError(
                f"data.side {self.data.side} must be a multiple of {2 * factor}: twice the factor"
            )
        if self.layout.overlap > self.layout.tile:
            raise ValueError(
                f"layout.overlap {self.layout.overlap} is wider than layout.tile "
                f"{self.layout.tile}: give a larger tile or a smaller overlap"
            )
        return self

    @property
    def device(self) -> Device:
        """Where to compute."""
        return self.layout.device

    @property
    def checkpoints(self) -> Path:
        """Folder for the state of a run that has not ended."""
        return self.output / "checkpoints"

    @property
    def last_learning_rate(self) -> float:
        """At the last epoch."""
        return self.optimizer.last_learning_rate or 0.1 * self.optimizer.learning_rate
