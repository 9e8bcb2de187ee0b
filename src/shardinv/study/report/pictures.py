"""Reconstructions for the page: what to lay over each other, each picture once."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from shardinv.io import PHOTOGRAPH_CREDIT, PHOTOGRAPHS
from shardinv.study.analysis.summary import Row
from shardinv.study.report.naming import Naming

# The page holds the pictures: of larger ones the middle, pixel by pixel.
MOST = 1024


@dataclass(frozen=True)
class Gallery:
    """Pictures to compare.

    Parameters
    ----------
    pictures
        By name, as data URLs; equal ones are there once.
    choices
        What each is called, and the name of its picture.
    before, after
        Which choices to begin with.
    side
        Of the pictures, in pixels.
    note
        Where they come from.
    """

    pictures: dict[str, str]
    choices: tuple[tuple[str, str], ...]
    before: int
    after: int
    side: int
    note: str


def gallery(rows: Sequence[Row], naming: Naming, folder: Path) -> Gallery | None:
    """All pictures of a study; None where there is none."""
    pictures: dict[str, str] = {}
    choices: dict[str, str] = {}
    side = cropped = 0
    # Only pictures of one size can lie over each other.
    pictured = [row for row in rows if all(file.is_file() for file in _files(row, folder).values())]
    most = max((row.point.pixels for row in pictured), default=0)
    shown = [row for row in pictured if row.point.pixels == most]
    shown.sort(key=lambda row: (row.point.system == "shardinv", row.point.ranks))
    for row in shown:
        for name, file in _files(row, folder).items():
            content, side, cut = _encoded(file)
            cropped |= cut
            key = hashlib.sha256(content.encode()).hexdigest()[:12]
            pictures[key] = content
            label = naming.name(row.point) if name == "end" else name
            if label in choices and choices[label] != key:
                label = f"{label} of {naming.name(row.point)}"
            choices[label] = key
    if not shown:
        return None
    names = list(choices)
    return Gallery(
        pictures,
        tuple(choices.items()),
        names.index("start"),
        names.index(naming.name(shown[-1].point)),
        side,
        _note(shown, bool(cropped)),
    )


def _files(row: Row, folder: Path) -> dict[str, Path]:
    return {
        name: folder / "images" / f"{row.point.key}-{name}.png"
        for name in ("truth", "start", "end")
    }


def _encoded(file: Path) -> tuple[str, int, bool]:
    with Image.open(file) as opened:
        picture: Image.Image = opened
        width, height = picture.size
        cut = max(width, height) > MOST
        if cut:
            left, top = max(0, (width - MOST) // 2), max(0, (height - MOST) // 2)
            box = (left, top, left + min(width, MOST), top + min(height, MOST))
            picture = picture.crop(box)
        content = io.BytesIO()
        picture.save(content, "PNG", optimize=True)
        text = base64.b64encode(content.getvalue()).decode()
        return f"data:image/png;base64,{text}", picture.size[0], cut


def _note(rows: Sequence[Row], cropped: bool) -> str:
    parts = []
    if cropped:
        parts.append(
            f"The middle {MOST} × {MOST} pixels, in the page; whole pictures are in images/."
        )
    if any(row.point.problem != "photograph" for row in rows):
        parts.append("A slice through the middle of the volume.")
    if any(r.point.problem == "photograph" and r.point.photograph in PHOTOGRAPHS for r in rows):
        parts.append(f"Photograph: {PHOTOGRAPH_CREDIT}, cropped.")
    return " ".join(parts)
