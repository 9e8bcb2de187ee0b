"""What ships: there, readable, with its licence, and not too much of it."""

from __future__ import annotations

import pytest
import torch

from shardinv.io import PHOTOGRAPHS, WEIGHTS, read_image, shipped_file


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs(name: str) -> None:
    image = read_image(shipped_file(name))
    assert image.shape[1] == 3
    assert min(image.shape[2:]) >= 2048


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str) -> None:
    content = torch.load(shipped_file(name), weights_only=True)
    assert all(value.dtype is torch.float16 for value in content.values())


def test_licences_lie_beside_the_files_and_all_is_small() -> None:
    folders = {shipped_file(name).parent for name in PHOTOGRAPHS | WEIGHTS}
    assert all(list(folder.glob("LICENSE*")) for folder in folders)
    files = [file for folder in folders for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) < 15e6


def test_unknown() -> None:
    with pytest.raises(
        KeyError, match="no shipped file is called 'lena'; there are drunet, ffdnet"
    ):
        shipped_file("lena")
