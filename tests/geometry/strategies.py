"""What hypothesis draws for these tests: boxes and images small enough for brute force."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from shardinv.geometry import Box

Pixel = tuple[int, ...]


def pixels(box: Box) -> list[Pixel]:
    """Return the coordinates of a box's pixels, in row-major order."""
    return list(product(*(range(a, b) for a, b in zip(box.start, box.stop, strict=True))))


@st.composite
def boxes(draw: st.DrawFn, ndim: int, low: int = -6, high: int = 8, longest: int = 6) -> Box:
    """Draw a box, empty ones included, whose starts lie in ``low .. high``."""
    start = draw(st.tuples(*[st.integers(low, high)] * ndim))
    shape = draw(st.tuples(*[st.integers(0, longest)] * ndim))
    return Box(start, tuple(a + n for a, n in zip(start, shape, strict=True)))


@st.composite
def box_pairs(draw: st.DrawFn) -> tuple[Box, Box]:
    """Draw two boxes of as many axes."""
    ndim = draw(st.integers(1, 3))
    return draw(boxes(ndim)), draw(boxes(ndim))


@st.composite
def box_lists(draw: st.DrawFn) -> list[Box]:
    """Draw up to six boxes of as many axes, overlapping or not."""
    ndim = draw(st.integers(1, 2))
    return draw(st.lists(boxes(ndim, longest=4), max_size=6))
