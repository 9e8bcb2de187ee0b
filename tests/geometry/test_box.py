"""The algebra of boxes, against sets of pixels."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import Box
from shardinv.geometry.box import find_overlap
from tests.geometry.strategies import box_lists, box_pairs, boxes, pixels


@given(box_pairs())
def test_intersection_is_that_of_the_pixels(pair: tuple[Box, Box]) -> None:
    a, b = pair
    meet = a & b
    assert set(pixels(meet)) == set(pixels(a)) & set(pixels(b))
    assert pixels(meet) == pixels(b & a)
    assert meet in a
    assert meet in b
    assert (b in a) == (set(pixels(b)) <= set(pixels(a)))


@given(boxes(2))
def test_size_and_emptiness_count_pixels(box: Box) -> None:
    assert box.ndim == 2
    assert box.size == len(pixels(box))
    assert box.is_empty == (not pixels(box))
    assert (box & box) == box
    assert Box.whole(box.shape).shape == box.shape


@given(boxes(2), st.tuples(st.integers(-9, 9), st.integers(-9, 9)))
def test_shift_moves_every_pixel_and_back(box: Box, offset: tuple[int, int]) -> None:
    moved = box.shift(offset)
    assert moved.shape == box.shape
    assert pixels(moved) == [tuple(np.add(pixel, offset)) for pixel in pixels(box)]
    assert moved.shift([-d for d in offset]) == box


@given(boxes(2), st.tuples(*[st.integers(0, 5)] * 2), st.tuples(*[st.integers(0, 5)] * 2))
def test_grow_adds_margins_and_shrinks_again(
    box: Box, before: tuple[int, int], after: tuple[int, int]
) -> None:
    grown = box.grow(before, after)
    assert box in grown
    assert grown.shape == tuple(np.add(np.add(box.shape, before), after))
    assert grown.grow([-m for m in before], [-m for m in after]) == box
    assert box.grow(before) == box.grow(before, before)


def test_shrinking_past_nothing_leaves_an_empty_box() -> None:
    assert Box((0, 0), (4, 9)).grow((-3, -1)) == Box((3, 1), (3, 8))
    assert Box((0, 0), (4, 9)).grow((-3, -1)).is_empty


@given(boxes(2), st.tuples(*[st.integers(0, 3)] * 2), st.tuples(*[st.integers(0, 3)] * 2))
def test_slices_find_the_pixels_of_an_array_that_holds_a_larger_box(
    box: Box, before: tuple[int, int], after: tuple[int, int]
) -> None:
    origin = box.grow(before, after)
    held = np.array(pixels(origin), dtype=int).reshape(*origin.shape, 2)
    found = held[box.slices(origin)]
    assert found.shape == (*box.shape, 2)
    assert [tuple(pixel) for pixel in found.reshape(-1, 2)] == pixels(box)


def test_slices_without_origin_start_at_zero() -> None:
    image = np.arange(12).reshape(3, 4)
    assert image[Box((1, 0), (3, 2)).slices()].tolist() == [[4, 5], [8, 9]]
    assert image[Box.whole(image.shape).slices()].tolist() == image.tolist()


@given(box_lists())
def test_overlap_is_found_wherever_two_boxes_share_a_pixel(found_boxes: list[Box]) -> None:
    overlapping = {
        (i, j)
        for (i, a), (j, b) in combinations(enumerate(found_boxes), 2)
        if set(pixels(a)) & set(pixels(b))
    }
    answer = find_overlap(found_boxes)
    if overlapping:
        assert answer is not None
        assert tuple(sorted(answer)) in overlapping
    else:
        assert answer is None


def test_boxes_are_plain_values() -> None:
    box = Box((np.int64(1), 2), [3, 4])  # type: ignore[arg-type]
    assert box == Box((1, 2), (3, 4))
    assert hash(box) == hash(Box((1, 2), (3, 4)))
    assert all(type(a) is int for a in box.start)
    assert str(box) == "[1:3, 2:4]"


def test_impossible_boxes_are_refused() -> None:
    with pytest.raises(ValueError, match="as many starts as stops"):
        Box((0, 0), (1,))
    with pytest.raises(ValueError, match="below its start"):
        Box((0, 5), (1, 4))
