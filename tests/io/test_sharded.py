"""Images that every rank reads and writes its box of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch

from shardinv.geometry import Box
from shardinv.io import ImageError, image_shape, read_region, sharded_image, write_sharded_image
from tests.harness import WorkerPool, assert_every_rank_raised


def _values(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 251).astype(np.uint8).reshape(shape)


def _read(ctx: Any, path: str, mesh: tuple[int, ...] | None, **options: Any) -> Any:
    x = sharded_image(ctx, path, mesh, **options)
    assert x.to_local().shape[2:] == x.box.shape
    return ctx.gather(x), [str(box) for box in x.sharding.partition.boxes]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_read(pool: WorkerPool, tmp_path: Path, size: int) -> None:
    array = _values(13, 19, 3)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", compression="zlib")
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "volume.npy", array)
    expected = torch.from_numpy(np.moveaxis(array, -1, 0) / 255)[None].float()
    for name in ("a.tif", "a.npy"):
        for mesh in (None, (1, size)):
            for x, boxes in pool.run(_read, str(tmp_path / name), mesh, world_size=size):
                assert torch.equal(x, expected)
                assert len(boxes) == size
    for x, _ in pool.run(_read, str(tmp_path / "volume.npy"), None, ndim=3, world_size=size):
        assert torch.equal(x[0, 0], torch.from_numpy(array / 255).float())


def _write(ctx: Any, folder: str, cases: list[tuple[str, tuple[int, ...], str | None]]) -> None:
    for name, shape, dtype in cases:
        whole = torch.from_numpy(_values(*shape) / 250 * 1.2 - 0.1)
        x = ctx.shard(whole[None])
        kind = None if dtype is None else getattr(torch, dtype)
        write_sharded_image(Path(folder, name), x, dtype=kind)
        # When the call returns, the file is there on every rank.
        assert Path(folder, name).exists()


CASES: list[tuple[str, tuple[int, ...], str | None]] = [
    ("grey.npy", (1, 13, 9), None),
    ("many.npy", (5, 13, 9), "float32"),
    ("grey.tif", (1, 13, 9), "uint16"),
    ("colour.tif", (3, 13, 9), "uint8"),
    ("many.tif", (5, 13, 9), None),
    ("volume.tif", (1, 7, 13, 9), "float32"),
    ("volume.npy", (2, 7, 13, 9), None),
    ("flat.npy", (1, 2, 3), None),
    ("new/colour.zarr", (3, 13, 9), "uint8"),
    ("large.zarr", (1, 600, 530), "uint16"),
]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_write(pool: WorkerPool, tmp_path: Path, size: int) -> None:
    cases = CASES
    try:
        import zarr  # noqa: F401
    except ImportError:
        cases = [case for case in CASES if not case[0].endswith("zarr")]
    for _ in range(2):  # a file that is there is replaced
        pool.run(_write, str(tmp_path), cases, world_size=size)
        for name, shape, dtype in cases:
            whole = torch.from_numpy(_values(*shape) / 250 * 1.2 - 0.1)[None]
            steps = {"uint8": 255, "uint16": 65535}.get(dtype or "")
            found = read_region(
                tmp_path / name,
                Box.whole(shape[1:]),
                # Of few channels or rows there is nothing to tell them by.
                channels_last=None if name.endswith("tif") else False,
                dtype=torch.float64,
            )
            if steps is not None:
                whole = (whole.clamp(0, 1) * steps).round() / steps
            elif dtype == "float32":
                whole = whole.float().double()
            assert torch.equal(found, whole), name
    # Nothing else is left behind.
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {name.split("/")[0] for name, *_ in cases}
    with tifffile.TiffFile(tmp_path / "colour.tif") as file:
        assert file.series[0].axes == "YXS"


def _fail(ctx: Any, path: str, how: str) -> None:
    from shardinv.io import sharded

    x = ctx.zeros((1, 1, 8, 6))
    if how == "one rank":

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        known = sharded._FORMATS[".npy"]
        if ctx.rank == 1:
            sharded._FORMATS[".npy"] = (known[0], full)
        try:
            write_sharded_image(path, x)
        finally:
            sharded._FORMATS[".npy"] = known
    elif how == "read":
        if ctx.rank == 1:
            path += ".gone.npy"
        sharded_image(ctx, path)
    elif how == "format":
        write_sharded_image(path + ".png", x)
    elif how == "type":
        write_sharded_image(path, x, dtype=torch.float16)
    elif how == "batch":
        write_sharded_image(path, ctx.zeros((2, 1, 8, 6)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("one rank", "writing .* failed on rank 1: .*No space left"),
        ("read", "there is no file .*gone.npy"),
        ("format", "can be written as .npy, .tif"),
        ("type", "can't be written as torch.float16"),
        ("batch", r"has shape \(1, C, \*spatial\), got \(2, 1, 8, 6\)"),
    ],
)
def test_every_rank_hears_of_it(pool: WorkerPool, tmp_path: Path, how: str, message: str) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((4, 4)))
    results = pool.run(_fail, str(path), how, expect_error=True)
    assert_every_rank_raised(results, ImageError, match=message)
    # The old file is still there, whole, and nothing else.
    assert image_shape(path).spatial == (4, 4)
    assert list(tmp_path.iterdir()) == [path]
