"""The photograph that the demo reconstructs: where it comes from, and the part that is used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from shardinv.cli.demo.settings import DemoSettings
from shardinv.cli.errors import UsageError
from shardinv.io import PHOTOGRAPH_CREDIT, PHOTOGRAPHS, ImageError, read_image, shipped_file
from shardinv.problems import centre_square

_CREDITS = dict.fromkeys(PHOTOGRAPHS, PHOTOGRAPH_CREDIT)


@dataclass(frozen=True)
class Scene:
    """The truth of the demo.

    Attributes
    ----------
    truth
        Shape ``(1, C, side, side)``, C 1 or 3, values in [0, 1].
    mirrored
        Whether the photograph was continued by mirror images to reach the size.
    credit
        Author and licence of a shipped photograph.
    """

    truth: Tensor
    mirrored: bool
    credit: str | None

    @property
    def side(self) -> int:
        """Side of the square in pixels."""
        return int(self.truth.shape[-1])


def load_scene(settings: DemoSettings) -> Scene:
    """Read the photograph and cut the square out of its middle."""
    image = load_photograph(settings.photograph)
    truth, mirrored = centre_square(image, settings.side(*image.shape[-2:]))
    return Scene(truth, mirrored, _CREDITS.get(settings.photograph))


def load_photograph(name_or_path: str) -> Tensor:
    """A photograph that ships, by name, or any other, by path: ``(1, C, H, W)``, C 1 or 3.

    Raises
    ------
    UsageError
        If it can't be read.
    """
    path = shipped_file(name_or_path) if name_or_path in PHOTOGRAPHS else Path(name_or_path)
    try:
        return read_image(path)
    except ImageError as error:
        raise UsageError(f"--photograph: {error}") from None
