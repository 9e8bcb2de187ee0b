"""Scores of iterates, between iterations: against the truth, and against reference runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shardinv.geometry import Box
from shardinv.io import atomic_file, write_image
from shardinv.problems import psnr, relative_error, ssim
from shardinv.study.analysis.agreement import Agreement
from shardinv.study.measuring.build import Blocks
from shardinv.study.plan.point import Point

# Half the width of the band along a seam in which its error is looked at.
_BAND = 8
# Pictures are for looking at: of a larger image, its middle.
_PICTURE = 1536


@dataclass(frozen=True)
class Files:
    """Where a point's files are that are not its measurement.

    Parameters
    ----------
    references
        By name, the folder of a reference run's iterates.
    keep
        Folder for this run's iterates; None to keep none.
    pictures
        Path of its pictures, to which ``-end.png`` and the like are added; None for none.
    """

    references: Mapping[str, Path] = field(default_factory=dict)
    keep: Path | None = None
    pictures: Path | None = None


class Scorer:
    """Scores one iterate after the other; every rank must call it.

    Parameters
    ----------
    point, blocks
        What is run.
    files
        What it is compared with, and what is written.

    Attributes
    ----------
    psnr_db, ssim, agreement
        On rank 0, as in `shardinv.study.measurement.Measurement`.
    """

    def __init__(self, point: Point, blocks: Blocks, files: Files) -> None:
        self._point, self._blocks, self._files = point, blocks, files
        self.psnr_db: list[float] = []
        self.ssim: list[float] = []
        self.agreement: dict[str, list[Agreement]] = {name: [] for name in files.references}
        # Sharded images are scored where they lie, unless quality needs them whole.
        self._sharded = point.layout == "sharded"
        self._truth = self._whole(blocks.truth) if point.quality else blocks.truth
        self._first = blocks.ctx is None or blocks.ctx.rank == 0
        self._seams = seams(blocks.cores, tuple(self._truth.shape[2:]))

    def score(self, image: Tensor) -> None:
        """Score an iterate, the start first."""
        if not self._point.quality:
            if self._first or self._sharded:
                self.psnr_db.append(psnr(image, self._truth))
            return
        whole = self._whole(image)
        if self._first:
            self._score(whole)

    def pictures(self, start: Tensor, end: Tensor) -> None:
        """Write pictures of truth, start and end, if they are wanted; every rank must call it."""
        if self._files.pictures is None or not self._point.quality:
            return
        start, end = self._whole(start), self._whole(end)
        if self._first:
            for name, image in (("truth", self._truth), ("start", start), ("end", end)):
                path = self._files.pictures.with_name(f"{self._files.pictures.name}-{name}.png")
                write_image(path, _picture(image))

    def _score(self, image: Tensor) -> None:
        number = len(self.psnr_db)
        self.psnr_db.append(psnr(image, self._truth))
        self.ssim.append(ssim(image, self._truth))
        if self._files.keep is not None:
            with atomic_file(self._files.keep / f"{number:04}.npy") as temporary:
                np.save(temporary, image.float().cpu().numpy())
        for name, folder in self._files.references.items():
            array = np.load(folder / f"{number:04}.npy")
            reference = torch.from_numpy(array).to(image.device)
            self.agreement[name].append(
                agreement(image, reference, self._truth, self._seams.to(image.device))
            )

    def _whole(self, image: Tensor) -> Tensor:
        if not self._sharded:
            return image
        whole: Tensor = self._blocks.ctx.gather(image)
        return whole


def agreement(image: Tensor, reference: Tensor, truth: Tensor, band: Tensor) -> Agreement:
    """How far an iterate is from its reference.

    Parameters
    ----------
    image, reference, truth
        Shape ``(B, C, *spatial)``.
    band
        Of shape ``spatial``: True along the seams of tiles.
    """
    near = bool(band.any())
    return Agreement(
        psnr_difference_db=psnr(image, truth) - psnr(reference, truth),
        relative=relative_error(image, reference),
        maximum=float((image - reference).abs().max()),
        seams=relative_error(image[..., band], reference[..., band]) if near else None,
    )


def seams(cores: Sequence[Box], spatial: tuple[int, ...]) -> Tensor:
    """Where the band along the seams between tiles is: a mask of shape ``spatial``."""
    band = torch.zeros(spatial, dtype=torch.bool)
    for core in cores:
        for axis, side in enumerate(spatial):
            for border in (core.start[axis], core.stop[axis]):
                if 0 < border < side:
                    part = [slice(a, b) for a, b in zip(core.start, core.stop, strict=True)]
                    part[axis] = slice(max(0, border - _BAND), border + _BAND)
                    band[tuple(part)] = True
    return band


def _picture(image: Tensor) -> Tensor:
    """The middle of an image, or of a volume's middle slice."""
    if image.dim() == 5:
        image = image[:, :, image.shape[2] // 2]
    rows, columns = (max(0, (side - _PICTURE) // 2) for side in image.shape[2:])
    return image[:, :, rows : rows + _PICTURE, columns : columns + _PICTURE]
