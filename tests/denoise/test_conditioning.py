"""What a network gets in place of its other arguments when it sees windows. No processes."""

from __future__ import annotations

import pytest
import torch

from shardinv.denoise.conditioning import cut_argument
from shardinv.geometry import Box

IMAGE = (2, 3, 8, 6)
ONE = [Box((0, 1), (4, 5))]
TWO = [*ONE, Box((4, 2), (8, 6))]


def test_what_belongs_to_no_pixel_is_handed_on() -> None:
    for value in (0.1, None, "text", torch.tensor(0.1), (1.0, 2.0), [0.1], [0.1, 0.2, 0.3]):
        assert cut_argument(value, IMAGE, TWO) is value


def test_one_an_image_is_repeated_for_each_window() -> None:
    assert cut_argument([0.1, 0.2], IMAGE, TWO) == [0.1, 0.2, 0.1, 0.2]
    levels = [torch.tensor(0.1), torch.tensor(0.2)]
    assert cut_argument(levels, IMAGE, TWO) == levels + levels
    for shape in ((2,), (2, 1), (2, 5), (2, 1, 1, 1), (2, 3, 1, 1)):
        value = torch.rand(shape)
        assert torch.equal(cut_argument(value, IMAGE, TWO), torch.cat([value, value]))
        assert torch.equal(cut_argument(value, IMAGE, ONE), value)


def test_one_for_all_images_stays_or_is_repeated() -> None:
    assert cut_argument(torch.rand(1), IMAGE, ONE).shape == (1,)
    value = torch.rand(1, 1, 1, 1)
    assert torch.equal(cut_argument(value, IMAGE, TWO), value.expand(4, 1, 1, 1))
    # A batch of one image: a level for it is a level for each of its windows.
    assert cut_argument(torch.rand(1), (1, 3, 8, 6), TWO).shape == (2,)


def test_map_is_cut_window_by_window() -> None:
    value = torch.rand(2, 1, 8, 6)
    expected = torch.cat([value[..., 0:4, 1:5], value[..., 4:8, 2:6]])
    assert torch.equal(cut_argument(value, IMAGE, TWO), expected)
    shared = cut_argument(value[:1], IMAGE, TWO)
    assert torch.equal(shared, expected[[0, 0, 2, 2]])
    rows = torch.rand(2, 1, 8, 1)
    assert torch.equal(
        cut_argument(rows, IMAGE, TWO), torch.cat([rows[..., 0:4, :], rows[..., 4:8, :]])
    )


def test_map_of_a_volume() -> None:
    value = torch.rand(1, 1, 4, 6, 5)
    window = Box((1, 0, 2), (3, 6, 5))
    assert torch.equal(cut_argument(value, (1, 2, 4, 6, 5), [window]), value[..., 1:3, 0:6, 2:5])


def test_map_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 1, 4, 6\).*\(2, 3, 8, 6\).*of length 1"):
        cut_argument(torch.rand(2, 1, 4, 6), IMAGE, ONE)
