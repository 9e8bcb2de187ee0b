"""Which pixels the ranks fetch from each other before a local operator: boxes and bytes.

Geometry alone: every rank works out the same, so that whether to exchange needs no message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardinv.geometry import Box, Partition, Plan, plan_transfers
from shardinv.physics.space.local import LocalOperator


@dataclass(frozen=True)
class HaloPlan:
    """The windows that the ranks need of an image, and how they get them.

    Parameters
    ----------
    windows
        Each rank's. Where nothing has to be fetched, its own box.
    plan
        Who sends what to whom; None where every rank has all it needs.
    """

    windows: tuple[Box, ...]
    plan: Plan | None

    @classmethod
    def of(cls, image: Partition, users: Sequence[tuple[LocalOperator, Partition]]) -> HaloPlan:
        """The plan for operators that share one exchange.

        Parameters
        ----------
        image
            Each rank's box of the image.
        users
            The operators that are applied to it, with their outputs' boxes.
        """
        ndim = len(image.shape)
        hulls = [
            hull(operator.window(output.boxes[rank], image.shape) for operator, output in users)
            for rank in range(image.ranks)
        ]
        if all(
            window is None or window in box for window, box in zip(hulls, image.boxes, strict=True)
        ):
            return cls(image.boxes, None)
        nothing = Box((0,) * ndim, (0,) * ndim)
        windows = tuple(nothing if window is None else window for window in hulls)
        wraps = [any(axis) for axis in zip(*(op.periodic(ndim) for op, _ in users), strict=True)]
        periods = tuple(n if wrap else None for n, wrap in zip(image.shape, wraps, strict=True))
        sources = tuple((box,) for box in image.boxes)
        return cls(windows, plan_transfers(sources, tuple((w,) for w in windows), periods))

    def sent(self, rank: int, adjoint: bool = False) -> int:
        """Pixels that a rank sends to others in one exchange, or in its adjoint."""
        if self.plan is None:
            return 0
        return (self.plan.reversed if adjoint else self.plan).pixels_sent(rank)

    def width(self, image: Partition) -> tuple[tuple[int, int], ...]:
        """How far the windows reach past the boxes, before and after, along each axis."""
        pairs = [
            (window, box)
            for window, box in zip(self.windows, image.boxes, strict=True)
            if not window.is_empty and not box.is_empty
        ]
        return tuple(
            (
                max((max(box.start[k] - window.start[k], 0) for window, box in pairs), default=0),
                max((max(window.stop[k] - box.stop[k], 0) for window, box in pairs), default=0),
            )
            for k in range(len(image.shape))
        )


def hull(boxes: Iterable[Box]) -> Box | None:
    """The smallest box around all pixels of some boxes; None where they have none."""
    filled = [box for box in boxes if not box.is_empty]
    if not filled:
        return None
    return Box(
        tuple(min(starts) for starts in zip(*(box.start for box in filled), strict=True)),
        tuple(max(stops) for stops in zip(*(box.stop for box in filled), strict=True)),
    )
