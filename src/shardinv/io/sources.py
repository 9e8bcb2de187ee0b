"""Files of arrays of which a part can be read: .npy, TIFF, Zarr.

Each is opened as a *source*: a shape, a type, and a function that reads a region and no more than
it must. What the axes mean is decided in ``regions``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tifffile

from shardinv.io.images import ImageError

Index = tuple[slice, ...]
SUFFIXES = (".npy", ".tif", ".tiff", ".zarr")


class Source(Protocol):
    """An array in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""

    def read(self, index: Index) -> np.ndarray:
        """A region, one slice for each axis."""


@contextmanager
def open_source(path: Path) -> Iterator[tuple[Source, str]]:
    """Open a file for reading regions.

    Yields
    ------
    source
        The array.
    axes
        A letter for each axis where the file says what they are (``Y``, ``X``, ``S`` for samples),
        else empty.

    Raises
    ------
    ImageError
        If it is missing, or can't be read by regions.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ImageError(
            f"{path}: regions can be read of {', '.join(SUFFIXES)}; read the whole with read_image "
            "and shard it"
        )
    if not path.exists():
        raise ImageError(f"there is no file {path}")
    try:
        if suffix == ".npy":
            yield _Mapped(np.load(path, mmap_mode="r")), ""
        elif suffix == ".zarr":
            yield _zarr(path), ""
        else:
            with tifffile.TiffFile(path) as file:
                yield _tiff(path, file)
    except ImageError:
        raise
    except (OSError, ValueError, RuntimeError, tifffile.TiffFileError) as error:
        raise ImageError(f"{path} can't be read as an array: {error}") from error


@dataclass(frozen=True)
class _Mapped:
    """An array in memory that the system reads page by page, or one that slices itself."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    def read(self, index: Index) -> np.ndarray:
        return np.array(self.array[index])


def _zarr(path: Path) -> Source:
    try:
        import zarr
    except ImportError:
        raise ImageError(
            f"{path}: reading Zarr needs the package zarr (pip install zarr)"
        ) from None
    found = zarr.open(path, mode="r")
    if not isinstance(found, zarr.Array):
        raise ImageError(f"{path} is a Zarr group; give the path of an array inside it")
    return _Mapped(found)


def _tiff(path: Path, file: tifffile.TiffFile) -> tuple[Source, str]:
    series = file.series[0]
    first = series.keyframe
    if first.photometric in (tifffile.PHOTOMETRIC.PALETTE, tifffile.PHOTOMETRIC.MINISWHITE):
        kind = tifffile.PHOTOMETRIC(first.photometric).name
        raise ImageError(
            f"{path} stores colours as {kind}, of which regions can't be read: read the whole with "
            "read_image"
        )
    try:
        return _Mapped(tifffile.memmap(path, series=0, mode="r")), series.axes
    except ValueError:  # compressed, or in pieces
        return _Pages(series), series.axes


@dataclass(frozen=True)
class _Pages:
    """A series of TIFF pages, of which only the strips or tiles that are needed are decoded."""

    series: tifffile.TiffPageSeries
    outer: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        page = self.series.keyframe
        outer = self.shape[: len(self.shape) - len(page.shape)]
        if self.shape[len(outer) :] != tuple(page.shape) or prod(outer) != len(self.series.pages):
            raise ImageError("its pages have different shapes")
        object.__setattr__(self, "outer", outer)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.series.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.series.dtype)

    def read(self, index: Index) -> np.ndarray:
        ahead, inside = index[: len(self.outer)], index[len(self.outer) :]
        chosen = [range(*s.indices(n)) for s, n in zip(ahead, self.outer, strict=True)]
        sizes = [len(range(*s.indices(n))) for s, n in zip(index, self.shape, strict=True)]
        result = np.zeros(sizes, self.dtype)
        for place in product(*(range(len(numbers)) for numbers in chosen)):
            at = tuple(numbers[k] for numbers, k in zip(chosen, place, strict=True))
            number = int(np.ravel_multi_index(at, self.outer)) if at else 0
            page = self.series.pages[number]
            if page is not None:  # else a page without data: zeros
                result[place] = self._read_page(page, inside)
        return result

    def _read_page(self, page: Any, inside: Index) -> np.ndarray:
        frame = page.keyframe
        bounds = [s.indices(n) for s, n in zip(inside, frame.shape, strict=True)]
        letters = dict(zip(frame.axes, bounds, strict=True))
        separate = frame.axes.startswith("S")
        # tifffile's own order: separate samples, depth, rows, columns, samples beside each other.
        names = ("S" if separate else "", "Z", "Y", "X", "" if separate else "S")
        wanted = [letters.get(name, (0, 1, 1))[:2] for name in names]
        result = np.zeros([b - a for a, b in wanted], self.dtype)
        tables: dict[str, Any] = {}
        if frame.compression in (6, 7, 34892, 33007):  # JPEG keeps part of its header apart
            tables = {"jpegtables": page.jpegtables, "jpegheader": frame.jpegheader}
        handle = page.parent.filehandle
        for number, (offset, length) in enumerate(
            zip(page.dataoffsets, page.databytecounts, strict=True)
        ):
            _, corner, shape = frame.decode(None, number)
            target, source = _meeting(wanted, corner, shape)
            if target is None or length == 0:
                continue
            handle.seek(offset)
            piece, _, _ = frame.decode(handle.read(length), number, **tables)
            if piece is not None:
                result[target] = piece.reshape(1, *piece.shape)[source]
        return result.reshape([b - a for a, b, _ in bounds])


def _meeting(
    wanted: Sequence[Sequence[int]], corner: Sequence[int], shape: Sequence[int]
) -> tuple[Index | None, Index | None]:
    """Where a strip or tile meets the region wanted: slices of the region, and of the piece."""
    lengths = (1, *shape)
    target, source = [], []
    for (a, b), start, length in zip(wanted, corner, lengths, strict=True):
        low, high = max(a, start), min(b, start + length)
        if low >= high:
            return None, None
        target.append(slice(low - a, high - a))
        source.append(slice(low - start, high - start))
    return tuple(target), tuple(source)
