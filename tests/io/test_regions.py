"""Regions of files: right pixels, and no more of the file than is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch

from shardinv.geometry import Box
from shardinv.io import ImageError, image_shape, read_region

RNG = np.random.default_rng(0)
BOXES = [
    Box((0, 0), (37, 53)),
    Box((5, 9), (6, 10)),
    Box((16, 16), (32, 48)),
    Box((30, 0), (37, 53)),
    Box((7, 7), (7, 20)),
]


def _write(path: Path, array: np.ndarray, **options: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".zarr":
        zarr = pytest.importorskip("zarr")
        zarr.create_array(path, shape=array.shape, chunks=(16,) * array.ndim, dtype=array.dtype)[
            ...
        ] = array
    else:
        tifffile.imwrite(path, array, **options)
    return path


FILES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "grey.npy": ((37, 53), {}),
    "first.npy": ((3, 37, 53), {}),
    "last.npy": ((37, 53, 3), {}),
    "grey.zarr": ((37, 53), {}),
    "first.zarr": ((3, 37, 53), {}),
    "plain.tif": ((37, 53), {}),
    "colour.tif": ((37, 53, 3), {"photometric": "rgb"}),
    "planar.tif": ((3, 37, 53), {"photometric": "rgb", "planarconfig": "separate"}),
    "strips.tif": ((37, 53), {"compression": "zlib", "rowsperstrip": 8}),
    "strips colour.tif": (
        (37, 53, 3),
        {"compression": "zlib", "rowsperstrip": 5, "photometric": "rgb", "predictor": True},
    ),
    "tiles.tif": ((37, 53), {"compression": "zlib", "tile": (16, 16)}),
    "tiles raw.tif": ((37, 53, 3), {"tile": (16, 32), "photometric": "rgb"}),
    "tiles planar.tif": (
        (3, 37, 53),
        {
            "compression": "zlib",
            "tile": (16, 16),
            "photometric": "rgb",
            "planarconfig": "separate",
        },
    ),
    "pages.tif": ((2, 37, 53), {"compression": "zlib", "photometric": "minisblack"}),
    "big endian.tif": ((37, 53), {"byteorder": ">"}),
}


@pytest.mark.parametrize("name", FILES)
def test_regions(name: str, tmp_path: Path) -> None:
    shape, options = FILES[name]
    array = RNG.integers(0, 65536, shape, dtype=np.uint16)
    path = _write(tmp_path / name, array, **options)
    whole = array[None] if array.ndim == 2 else array
    if whole.shape[-1] == 3:
        whole = np.moveaxis(whole, -1, 0)
    found = image_shape(path)
    assert (found.channels, found.spatial, found.dtype) == (
        whole.shape[0],
        (37, 53),
        "uint16",
    )
    for box in BOXES:
        region = read_region(path, box, dtype=torch.float64)
        assert region.is_contiguous()
        expected = whole[(slice(None), *box.slices())][None] / 65535
        assert region.shape == (1, whole.shape[0], *box.shape)
        np.testing.assert_array_equal(region.numpy(), expected, err_msg=str(box))


@pytest.mark.parametrize("name", ["volume.npy", "volume.zarr", "volume.tif", "packed.tif"])
def test_volumes(name: str, tmp_path: Path) -> None:
    array = RNG.random((9, 17, 23), dtype=np.float32)
    options = {"compression": "zlib"} if name == "packed.tif" else {}
    if name.endswith("tif"):
        options["photometric"] = "minisblack"
    path = _write(tmp_path / name, array, **options)
    box = Box((2, 3, 4), (7, 17, 20))
    region = read_region(path, box)
    assert region.dtype == torch.float32
    np.testing.assert_array_equal(region[0, 0].numpy(), array[box.slices()])


def test_channels_can_be_said(tmp_path: Path) -> None:
    array = RNG.random((5, 6, 7))
    path = _write(tmp_path / "a.npy", array)
    assert image_shape(path).channel_axis == 0
    assert image_shape(path, channels_last=True).channels == 7
    region = read_region(path, Box((1, 2), (4, 6)), channels_last=True, dtype=torch.float64)
    np.testing.assert_array_equal(region[0].numpy(), np.moveaxis(array[1:4, 2:6], -1, 0))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([[0, 51, 255]], np.uint8), [0, 0.2, 1]),
        (np.array([[0, 2**31, 2**32 - 1]], np.uint32), [0, 0.5, 1]),
        (np.array([[-127, 0, 127]], np.int8), [-1, 0, 1]),
        (np.array([[False, True, True]]), [0, 1, 1]),
        (np.array([[-3.5, 0, 7]], np.float64), [-3.5, 0, 7]),
        (np.array([[-3.5, 0, 7]], ">f4"), [-3.5, 0, 7]),
    ],
)
def test_integers_are_scaled(array: np.ndarray, expected: list[float], tmp_path: Path) -> None:
    path = _write(tmp_path / "a.npy", array)
    region = read_region(path, Box((0, 0), (1, 3)))
    torch.testing.assert_close(region[0, 0, 0], torch.tensor(expected, dtype=torch.float32))


def test_only_what_is_needed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = RNG.integers(0, 256, (256, 256), dtype=np.uint8)
    path = _write(tmp_path / "a.tif", array, compression="zlib", tile=(32, 32))
    read = 0
    original = tifffile.FileHandle.read

    def count(self: Any, size: int = -1, /) -> bytes:
        nonlocal read
        data: bytes = original(self, size)
        read += len(data)
        return data

    monkeypatch.setattr(tifffile.FileHandle, "read", count)
    read_region(path, Box((0, 0), (256, 256)))
    everything, read = read, 0
    # Two of 64 tiles, and the headers.
    read_region(path, Box((40, 40), (50, 70)))
    assert read < everything / 8


def test_refuses(tmp_path: Path) -> None:
    box = Box((0, 0), (2, 2))
    path = _write(tmp_path / "a.npy", np.zeros((4, 3)))
    for bad, message in (
        (tmp_path / "none.npy", "there is no file"),
        (tmp_path / "a.png", "regions can be read of .npy, .tif"),
        (_write(tmp_path / "flat.npy", np.zeros(7)), r"an array of shape \(7,\)"),
        (_write(tmp_path / "four.npy", np.zeros((1, 2, 3, 4))), "must have 2 axes, or 3"),
        (_write(tmp_path / "complex.npy", np.zeros((4, 3), complex)), "no image"),
    ):
        with pytest.raises(ImageError, match=message):
            read_region(bad, box)
    with pytest.raises(ValueError, match=r"\[0:5, 0:2\] reaches outside the image \(4, 3\)"):
        read_region(path, Box((0, 0), (5, 2)))
    for name in ("broken.npy", "broken.tif"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ImageError, match="can't be read"):
            read_region(tmp_path / name, box)
    (tmp_path / "broken.zarr").mkdir()
    with pytest.raises(ImageError):
        read_region(tmp_path / "broken.zarr", box)
    palette = tmp_path / "palette.tif"
    tifffile.imwrite(
        palette,
        np.zeros((4, 3), np.uint8),
        photometric="palette",
        colormap=np.zeros((3, 256), np.uint16),
    )
    with pytest.raises(ImageError, match="stores colours as PALETTE"):
        read_region(palette, box)


def test_zarr_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zarr").mkdir()
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImageError, match="pip install zarr"):
        read_region(tmp_path / "a.zarr", Box((0, 0), (2, 2)))
