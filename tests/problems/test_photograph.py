"""Cutting a square out of a photograph, or making one by mirroring."""

from __future__ import annotations

import torch

from shardinv.problems import centre_square


def test_cuts_the_middle() -> None:
    image = torch.arange(48.0).reshape(1, 1, 6, 8)
    square, mirrored = centre_square(image, 4)
    assert torch.equal(square, image[..., 1:5, 2:6])
    assert not mirrored


def test_mirrors_as_often_as_needed() -> None:
    image = torch.rand(1, 3, 3, 5)
    square, mirrored = centre_square(image, 16)
    assert mirrored
    assert square.shape == (1, 3, 16, 16)
    # The photograph itself is in the middle, and next to it its mirror images.
    top, left = 7, 6
    assert torch.equal(square[..., top : top + 3, left : left + 5], image)
    assert torch.equal(square[..., top + 3 : top + 6, left : left + 5], image.flip(-2))
    assert torch.equal(square[..., top : top + 3, left + 5 : left + 10], image.flip(-1))
