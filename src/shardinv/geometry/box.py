"""The box: a start and a stop on each spatial axis, in pixels of the whole image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import eq, lt, sub


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A half-open box of pixels, ``start[k] <= index < stop[k]`` on each spatial axis ``k``.

    Coordinates are those of the whole image. They may be negative or lie past its end, as those of
    a halo that wraps around do. A box with no pixel is allowed; its stop is never below its start.

    Parameters
    ----------
    start, stop
        One integer for each spatial axis.

    Raises
    ------
    ValueError
        If the two have different lengths, or a stop is below its start.

    Examples
    --------
    >>> Box((0, 4), (8, 10)).shape
    (8, 6)
    >>> Box((0,), (8,)) & Box((6,), (12,))
    Box(start=(6,), stop=(8,))
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        # Boxes are made by the thousand in a solver of small crops, hence map and no generators.
        object.__setattr__(self, "start", tuple(map(int, self.start)))
        object.__setattr__(self, "stop", tuple(map(int, self.stop)))
        if len(self.start) != len(self.stop):
            raise ValueError(
                f"a box needs as many starts as stops, got start={self.start} and stop={self.stop}"
            )
        if any(map(lt, self.stop, self.start)):
            raise ValueError(
                f"a box's stop may not be below its start, got start={self.start}, stop={self.stop}"
            )

    @classmethod
    def whole(cls, shape: Iterable[int]) -> Box:
        """The box of an entire image of the given spatial shape."""
        shape = tuple(shape)
        return cls((0,) * len(shape), shape)

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.start)

    @property
    def shape(self) -> tuple[int, ...]:
        """Pixels along each axis."""
        return tuple(map(sub, self.stop, self.start))

    @property
    def size(self) -> int:
        """Pixels in all."""
        return prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether the box holds no pixel."""
        return any(map(eq, self.start, self.stop))

    def __and__(self, other: Box) -> Box:
        """The pixels of both boxes (an empty box where they do not meet)."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        return Box(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def __contains__(self, other: Box) -> bool:
        """Whether every pixel of ``other`` lies in this box."""
        return other.is_empty or (self & other) == other

    def shift(self, offset: Sequence[int]) -> Box:
        """The box moved by ``offset`` pixels along each axis."""
        return Box(
            tuple(a + d for a, d in zip(self.start, offset, strict=True)),
            tuple(b + d for b, d in zip(self.stop, offset, strict=True)),
        )

    def grow(self, before: Sequence[int], after: Sequence[int] | None = None) -> Box:
        """The box with a margin of ``before`` and ``after`` pixels (negative ones shrink it)."""
        after = before if after is None else after
        start = tuple(a - m for a, m in zip(self.start, before, strict=True))
        stop = tuple(b + m for b, m in zip(self.stop, after, strict=True))
        return Box(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def slices(self, origin: Box | None = None) -> tuple[slice, ...]:
        """Slices of the spatial axes of an array that holds ``origin`` (default: starts at 0)."""
        base = (0,) * self.ndim if origin is None else origin.start
        return tuple(
            slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, base, strict=True)
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


def find_overlap(boxes: Iterable[Box]) -> tuple[int, int] | None:
    """The positions of two boxes that share a pixel, or None where all are disjoint."""
    filled = [(box, position) for position, box in enumerate(boxes) if not box.is_empty]
    filled.sort(key=lambda pair: pair[0].start)
    # A sweep along the first axis: only boxes that have not ended there can still meet.
    open_boxes: list[tuple[Box, int]] = []
    for box, position in filled:
        open_boxes = [(other, q) for other, q in open_boxes if other.stop[0] > box.start[0]]
        for other, q in open_boxes:
            if not (box & other).is_empty:
                return q, position
        open_boxes.append((box, position))
    return None
