"""Reading whatever Pillow reads as float images in [0, 1], and writing them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shardinv.io import ImageError, read_image, write_image


def _save(path: Path, array: np.ndarray, **options: object) -> Path:
    Image.fromarray(array).save(path, **options)
    return path


def test_colour(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = read_image(_save(tmp_path / "a.png", array))
    assert image.shape == (1, 3, 5, 7)
    assert image.dtype == torch.float32
    assert image.is_contiguous()
    levels = (image[0] * 255).round().to(torch.uint8)
    assert torch.equal(levels.permute(1, 2, 0), torch.from_numpy(array))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_grey_keeps_its_depth(dtype: type, tmp_path: Path) -> None:
    top = np.iinfo(dtype).max
    array = np.array([[0, top // 3], [top // 2, top]], dtype=dtype)
    image = read_image(_save(tmp_path / "a.png", array))
    assert image.shape == (1, 1, 2, 2)
    expected = torch.from_numpy((array / top).astype(np.float32))
    torch.testing.assert_close(image[0, 0], expected, rtol=0, atol=1e-6)


def test_floats(tmp_path: Path) -> None:
    inside = np.array([[0.0, 0.25], [0.5, 1.0]], dtype=np.float32)
    image = read_image(_save(tmp_path / "a.tif", inside))
    assert torch.equal(image[0, 0], torch.from_numpy(inside))
    wide = np.array([[-1.0, 0.0], [50.0, 100.0]], dtype=np.float32)
    expected = torch.tensor([[0, 0], [0.5, 1.0]])
    torch.testing.assert_close(read_image(_save(tmp_path / "b.tif", wide))[0, 0], expected)
    broken = np.array([[np.nan, 0.0]], dtype=np.float32)
    with pytest.raises(ImageError, match="not finite"):
        read_image(_save(tmp_path / "c.tif", broken))


def test_transparency_lies_over_white(tmp_path: Path) -> None:
    array = np.zeros((1, 3, 4), dtype=np.uint8)
    array[0, :, 0] = 255  # red
    array[0, :, 3] = 0, 255, 51  # clear, opaque, one fifth
    image = read_image(_save(tmp_path / "a.png", array))
    assert image.shape == (1, 3, 1, 3)
    expected = torch.tensor([[1.0, 1, 1], [1, 0, 0.8], [1, 0, 0.8]])
    torch.testing.assert_close(image[0, :, 0], expected, rtol=0, atol=0.005)
    grey = np.zeros((1, 2, 2), dtype=np.uint8)
    assert read_image(_save(tmp_path / "b.png", grey)).shape == (1, 1, 1, 2)


@pytest.mark.parametrize(("mode", "channels"), [("P", 3), ("1", 1), ("CMYK", 3), ("LA", 1)])
def test_other_modes(mode: str, channels: int, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (4, 3), "white").convert(mode).save(path)
    image = read_image(path)
    assert image.shape == (1, channels, 3, 4)
    torch.testing.assert_close(image, torch.ones_like(image))


def test_obeys_the_camera(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    array = np.zeros((4, 2, 3), dtype=np.uint8)
    assert read_image(_save(tmp_path / "a.jpg", array, exif=exif)).shape == (1, 3, 2, 4)


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there is no file"):
        read_image(tmp_path / "none.png")
    with pytest.raises(ImageError, match="can't be read"):
        read_image(tmp_path)
    text = tmp_path / "text.png"
    text.write_text("no image")
    with pytest.raises(ImageError, match="not an image that Pillow can read"):
        read_image(text)
    array = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = _save(tmp_path / "a.png", array).read_bytes()
    text.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImageError, match="can't be read as an image"):
        read_image(text)


@pytest.mark.parametrize("channels", [1, 3])
def test_write(channels: int, tmp_path: Path) -> None:
    image = torch.linspace(-0.2, 1.2, 20 * channels).reshape(1, channels, 4, 5)
    path = tmp_path / "new" / "image.png"
    write_image(path, image)
    torch.testing.assert_close(read_image(path), image.clamp(0, 1), rtol=0, atol=0.5 / 255 + 1e-6)
    with pytest.raises(ValueError, match="C 1 or 3"):
        write_image(path, torch.zeros(2, 4, 5))
