"""Images of which every rank reads or writes its box, and none the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch

from shardinv import DistributedContext
from shardinv.checkpoint import on_all, on_main
from shardinv.context.images import Mesh
from shardinv.geometry import Box, Partition
from shardinv.io.atomic import atomic_file, atomic_folder
from shardinv.io.images import ImageError
from shardinv.io.regions import image_shape, read_region
from shardinv.tensor import ShardedTensor, realign

ZARR_CHUNK = 256
"""Side of a chunk in pixels. A chunk is a file, which only one rank may write."""

_TYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
    torch.uint8: np.dtype("uint8"),
    torch.uint16: np.dtype("uint16"),
}


def sharded_image(
    ctx: DistributedContext,
    path: Path | str,
    mesh: Mesh = None,
    *,
    align: int | Sequence[int] = 1,
    ndim: int = 2,
    channels_last: bool | None = None,
    dtype: torch.dtype = torch.float32,
) -> ShardedTensor:
    """Read an image from a file that every rank can see; each reads its box only.

    Parameters
    ----------
    ctx
        The ranks.
    path, channels_last, dtype
        As for :func:`~shardinv.io.read_region`.
    mesh, align
        As for ``ctx.shard``.
    ndim
        Number of spatial axes.

    Returns
    -------
    ShardedTensor
        ``(1, C, *spatial)``, integers scaled to [0, 1].

    Raises
    ------
    ImageError
        On every rank, if one can't read.
    """
    path = Path(path)
    read: list[torch.Tensor] = []
    shapes: list[tuple[int, ...]] = []

    def work() -> None:
        shape = image_shape(path, ndim=ndim, channels_last=channels_last)
        box = ctx.sharding(shape.spatial, mesh, align).box
        read.append(read_region(path, box, channels_last=channels_last, dtype=dtype))
        shapes.append((1, shape.channels, *shape.spatial))

    on_all(ctx.comm, "reading an image", work, ImageError)
    return ctx.from_function(shapes[0], lambda box: read[0], mesh=mesh, align=align)


def write_sharded_image(
    path: Path | str, image: ShardedTensor, *, dtype: torch.dtype | None = None
) -> None:
    """Write a sharded image to one file, whole or not at all. Every rank must call it.

    Every rank writes its box to the file, which all must be able to see. The suffix chooses the
    format: ``.npy`` and ``.zarr`` with the axes ``(C, *spatial)``, ``.tif`` (uncompressed) with
    colours last as viewers expect.

    Parameters
    ----------
    path
        Where to.
    image
        ``(1, C, *spatial)``.
    dtype
        ``torch.float32``, ``float64``: values as they are. ``torch.uint8``, ``uint16``: values
        clamped to [0, 1] and scaled. Default: float64 for a float64 image, else float32.

    Raises
    ------
    ImageError
        On every rank, if the format or type is not one of these, or one can't write.
    """
    path = Path(path)
    if image.ndim != 2 + image.sharding.ndim or image.trailing or image.shape[0] != 1:
        raise ImageError(
            f"an image to write has shape (1, C, *spatial), got {tuple(image.shape)} with "
            f"{image.sharding.ndim} spatial axes"
        )
    if dtype is None:
        dtype = torch.float64 if image.dtype == torch.float64 else torch.float32
    if dtype not in _TYPES or image.is_complex():
        names = ", ".join(str(known) for known in _TYPES)
        raise ImageError(f"{image.dtype} can't be written as {dtype}; there are {names}")
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise ImageError(
            f"{path}: a sharded image can be written as {', '.join(_FORMATS)}; gather it and use "
            "write_image for others"
        )
    create, write = _FORMATS[suffix]
    if suffix == ".zarr":
        image = _whole_chunks(image)
    comm, box = image.sharding.comm, image.box
    values = _levels(image.to_local().detach()[0], dtype)
    shape = tuple(image.shape[1:])
    holder = atomic_folder if suffix == ".zarr" else atomic_file
    with ExitStack() as stack:

        def begin() -> Path:
            temporary = stack.enter_context(holder(path))
            create(temporary, shape, _TYPES[dtype])
            return temporary

        temporary = on_main(comm, f"writing {path}", begin, ImageError)
        on_all(comm, f"writing {path}", lambda: write(temporary, values, box), ImageError)
        # Renamed while the others wait: when they go on, the file is there.
        on_main(comm, f"writing {path}", stack.close, ImageError)


def _levels(local: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
    """The values ``(C, *box.shape)`` as they are stored."""
    if dtype.is_floating_point:
        return local.cpu().to(dtype).numpy()
    kind = _TYPES[dtype]
    levels = (local.cpu().double().clamp(0, 1) * np.iinfo(kind).max).round()
    return levels.numpy().astype(kind)


def _whole_chunks(image: ShardedTensor) -> ShardedTensor:
    """The image in boxes that cut no chunk of a Zarr array. Moves a few rows."""
    old = image.sharding
    if old.order is not None:
        boxes = Partition.split(old.shape, old.mesh, ZARR_CHUNK).boxes
        partition = [boxes[old.order.index(rank)] for rank in range(old.comm.size)]
    else:
        partition = list(Partition.split(old.shape, old.mesh, ZARR_CHUNK).boxes)
    return realign(image, old.follow(old.shape, partition))


def _create_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _write_npy(path: Path, values: np.ndarray, box: Box) -> None:
    if not box.is_empty:
        target = np.load(path, mmap_mode="r+")
        target[(slice(None), *box.slices())] = values
        target.flush()


def _create_tiff(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    colour = shape[0] in (3, 4)
    if colour:
        shape = (*shape[1:], shape[0])
    elif shape[0] == 1:
        shape = shape[1:]
    tifffile.memmap(
        path,
        shape=shape,
        dtype=dtype,
        photometric="rgb" if colour else "minisblack",
        # The length of a classic file fits into 32 bits.
        bigtiff=int(np.prod(shape, dtype=np.int64)) * dtype.itemsize > 4_000_000_000,
    ).flush()


def _write_tiff(path: Path, values: np.ndarray, box: Box) -> None:
    if box.is_empty:
        return
    target = tifffile.memmap(path, mode="r+")
    if values.shape[0] in (3, 4):
        target[box.slices()] = np.moveaxis(values, 0, -1)
    elif values.shape[0] == 1:
        target[box.slices()] = values[0]
    else:
        target[(slice(None), *box.slices())] = values
    target.flush()


def _create_zarr(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    try:
        import zarr
    except ImportError:
        raise ImageError("Zarr needs the package zarr (pip install zarr)") from None
    chunks = (shape[0], *(min(n, ZARR_CHUNK) for n in shape[1:]))
    zarr.create_array(path, shape=shape, chunks=chunks, dtype=dtype, overwrite=True)


def _write_zarr(path: Path, values: np.ndarray, box: Box) -> None:
    import zarr

    if not box.is_empty:
        zarr.open_array(path, mode="r+")[(slice(None), *box.slices())] = values


_Create = Callable[[Path, tuple[int, ...], np.dtype[Any]], None]
_Write = Callable[[Path, np.ndarray, Box], None]
_FORMATS: dict[str, tuple[_Create, _Write]] = {
    ".npy": (_create_npy, _write_npy),
    ".tif": (_create_tiff, _write_tiff),
    ".tiff": (_create_tiff, _write_tiff),
    ".zarr": (_create_zarr, _write_zarr),
}
