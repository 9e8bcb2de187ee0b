"""Photographs as tensors, by Pillow.

An image is a float32 tensor ``(1, C, H, W)`` with values in [0, 1], C = 1 for grey and 3 for
colour.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from shardinv.io.atomic import atomic_file


class ImageError(ValueError):
    """A file that can't be read as an image."""


def read_image(path: Path | str) -> Tensor:
    """Read a photograph.

    The camera's orientation tag is obeyed. Transparency is laid over white. Grey images of 16 bits
    and more keep their depth (Pillow reads colour with 8); integers beyond 16 bits and floats
    above 1 are scaled by their largest value, and negative values become 0.

    Parameters
    ----------
    path
        Any format that Pillow reads.

    Returns
    -------
    Tensor
        Shape ``(1, 1, H, W)`` for a grey image, ``(1, 3, H, W)`` for any other, float32 in [0, 1].

    Raises
    ------
    ImageError
        If the file is missing, is no image, or is cut off.
    """
    path = Path(path)
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            array = _to_array(image)
    except FileNotFoundError:
        raise ImageError(f"there is no file {path}") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{path} is not an image that Pillow can read; JPEG, PNG and TIFF are"
        ) from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"{path} can't be read as an image: {error}") from error
    if array.ndim == 2:
        array = array[..., None]
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))[None]


def write_image(path: Path | str, image: Tensor) -> None:
    """Write an image ``(1, C, H, W)`` or ``(C, H, W)``, C 1 or 3, with 8 bits, whole or not at all.

    Values are clamped to [0, 1]. The suffix chooses the format.
    """
    if image.dim() == 4:
        image = image.squeeze(0)
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise ValueError(
            f"an image to write has shape (1, C, H, W) with C 1 or 3, got {tuple(image.shape)}"
        )
    levels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu()
    picture = Image.fromarray(np.ascontiguousarray(levels.permute(1, 2, 0).squeeze(-1).numpy()))
    with atomic_file(path) as temporary:
        picture.save(temporary)


def _to_array(image: Image.Image) -> np.ndarray:
    """Float32 array ``(H, W)`` or ``(H, W, 3)`` in [0, 1]."""
    if image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.float32) / 65535
    if image.mode in ("I", "F"):
        array = np.asarray(image).astype(np.float64)
        if not np.isfinite(array).all():
            raise OSError("it holds values that are not finite")
        # Some Pillow releases read a PNG of 16 bits as "I". A range of floats can only be guessed.
        span = 65535.0 if image.mode == "I" else 1.0
        array = array.clip(0) / max(span, float(array.max()))
        return array.astype(np.float32)
    if image.mode == "1":
        image = image.convert("L")
    has_alpha = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
    if has_alpha:
        grey = image.mode in ("LA", "La", "L")
        layer = image.convert("RGBA")
        image = Image.new("RGBA", layer.size, "white")
        image.alpha_composite(layer)
        image = image.convert("L" if grey else "RGB")
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    return np.asarray(image).astype(np.float32) / 255
