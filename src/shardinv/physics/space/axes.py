"""Geometry of one axis: which input pixels an output pixel draws on, and how the image goes on past
its border.

Arithmetic on integers alone; ``padding`` does the same to tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Padding = Literal["valid", "circular", "reflect", "replicate", "constant", "symmetric"]
"""How an image is continued: not at all, ``cd|abcd|ab``, ``cb|abcd|cb``, ``aa|abcd|dd``, zeros,
``ba|abcd|dc``."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the positions that some outputs of an axis draw on are found in the image.

    Positions in order: ``before`` of them lie before the image, then the pixels ``core``, then
    ``after`` of them past its end. ``low`` and ``high`` are the pixels that those two parts are
    copies of, reversed where ``padding`` mirrors; None where they are zeros or there are none.
    """

    padding: Padding
    before: int
    core: tuple[int, int]
    after: int
    low: tuple[int, int] | None
    high: tuple[int, int] | None

    @property
    def span(self) -> tuple[int, int]:
        """The pixels from the first to the last that is needed."""
        parts = [part for part in (self.low, self.core, self.high) if part is not None]
        return min(a for a, _ in parts), max(b for _, b in parts)


@dataclass(frozen=True, slots=True)
class Axis:
    """How the outputs along one axis draw on the inputs: output ``i`` on ``taps`` positions.

    The first of them is ``i * stride - (taps - 1 - centre)``, or ``i * stride`` where the image is
    not continued.

    Parameters
    ----------
    taps
        Length of the kernel in pixels.
    centre
        Index in the kernel of the tap with no displacement.
    stride
        Every ``stride``-th output is kept.
    padding
        How the image is continued.

    Raises
    ------
    ValueError
        If there is no such padding, or the numbers make no sense.

    Examples
    --------
    >>> axis = Axis(taps=3, centre=1, padding="reflect")
    >>> axis.sources(0, 4, 10).span
    (0, 5)
    >>> axis.sources(9, 10, 10)
    Sources(padding='reflect', before=0, core=(8, 10), after=1, low=None, high=(8, 9))
    """

    taps: int = 1
    centre: int = 0
    stride: int = 1
    padding: Padding = "constant"

    def __post_init__(self) -> None:
        if self.padding not in get_args(Padding):
            raise ValueError(f"padding must be one of {get_args(Padding)}, got {self.padding!r}")
        if self.taps < 1 or self.stride < 1 or not 0 <= self.centre < self.taps:
            raise ValueError(f"an axis needs a tap, a stride and a centre among its taps: {self}")

    @property
    def periodic(self) -> bool:
        """Whether the image wraps around."""
        return self.padding == "circular"

    @property
    def before(self) -> int:
        """Positions drawn on before that of the output's own pixel."""
        return self.taps - 1 - self.centre

    @property
    def origin(self) -> int:
        """The pixel over which the first output's kernel is centred."""
        return self.before if self.padding == "valid" else 0

    def outputs(self, pixels: int) -> int:
        """Number of outputs of an axis of so many pixels.

        Raises
        ------
        ValueError
            If the axis is too short for the kernel.
        """
        needed = {
            "valid": self.taps,
            "reflect": max(self.before, self.centre) + 1,
            "circular": max(self.before, self.centre),
            "symmetric": max(self.before, self.centre),
        }.get(self.padding, 0)
        if pixels < max(needed, 1):
            raise ValueError(
                f"an axis of {pixels} pixels is too short for a kernel of {self.taps} taps with "
                f"{self.padding} padding: at least {max(needed, 1)} are needed"
            )
        kept = pixels - self.taps + 1 if self.padding == "valid" else pixels
        return -(-kept // self.stride)

    def inputs(self, outputs: int) -> int:
        """Length of the image that so many outputs came from, taken as a multiple of the stride."""
        kept = outputs * self.stride
        return kept + self.taps - 1 if self.padding == "valid" else kept

    def follow(self, cut: int, pixels: int) -> int:
        """The cut of the outputs that goes with a cut of the image: outputs lie by their centre."""
        return min(max(-(-(cut - self.origin) // self.stride), 0), self.outputs(pixels))

    def lead(self, cut: int, pixels: int) -> int:
        """A cut of the image that :meth:`follow` turns into this cut of the outputs."""
        if cut <= 0:
            return 0
        if cut >= self.outputs(pixels):
            return pixels
        return cut * self.stride + self.origin

    def sources(self, start: int, stop: int, pixels: int) -> Sources:
        """Where outputs ``start`` to ``stop`` of an image of so many pixels find their inputs.

        ``stop`` must be above ``start``. Along a periodic axis both may lie outside the outputs,
        and so may the pixels of the answer, in unwrapped coordinates.
        """
        offset = 0 if self.padding == "valid" else -self.before
        low, high = start * self.stride + offset, (stop - 1) * self.stride + offset + self.taps
        if self.periodic:
            return Sources(self.padding, 0, (low, high), 0, None, None)
        core = (max(low, 0), min(high, pixels))
        before, after = core[0] - low, high - core[1]
        if self.padding in ("constant", "valid"):
            return Sources(self.padding, before, core, after, None, None)
        if self.padding == "replicate":
            first, last = (0, 1), (pixels - 1, pixels)
        else:
            skip = 1 if self.padding == "reflect" else 0
            # The positions low .. 0 and pixels .. high, mirrored.
            first = (skip, skip + before)
            last = (pixels - skip - after, pixels - skip)
        return Sources(
            self.padding, before, core, after, first if before else None, last if after else None
        )

    def spreads(self, start: int, stop: int, pixels: int) -> tuple[int, int]:
        """Outputs that draw on any of the pixels ``start`` to ``stop``, from first to last."""
        count = self.outputs(pixels)
        offset = 0 if self.padding == "valid" else -self.before
        ranges = [(start, stop)]
        # Pixels near the border are also found at positions past it.
        if self.padding in ("reflect", "symmetric"):
            skip = 1 if self.padding == "reflect" else 0
            ranges.append((max(skip - stop, -self.before), min(skip - start, 0)))
            mirror = 2 * pixels - skip
            ranges.append((max(mirror - stop, pixels), min(mirror - start, pixels + self.centre)))
        elif self.padding == "replicate":
            ranges.append((-self.before, 0 if start == 0 else -self.before))
            ranges.append((pixels, pixels + self.centre if stop == pixels else pixels))
        low = min(-(-(a - offset - self.taps + 1) // self.stride) for a, b in ranges if b > a)
        high = max((b - 1 - offset) // self.stride + 1 for a, b in ranges if b > a)
        if self.periodic:
            return low, max(high, low)
        low, high = max(low, 0), min(high, count)
        return low, max(high, low)
