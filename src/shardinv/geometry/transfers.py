"""Who must send what to whom, worked out from boxes alone.

Every rank has source boxes and wants target boxes; the messages are their intersections. A halo, a
gather, a re-alignment of shards: all are this, with other boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from shardinv.geometry.box import Box, find_overlap

Layout = tuple[tuple[Box, ...], ...]
"""The boxes of every rank: ``layout[rank]`` are the boxes that the rank holds or wants."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One block of pixels that goes from a box of one rank to a box of another (or the same).

    ``source_box`` and ``target_box`` have one shape; they differ by a period where an axis wraps.
    """

    source_rank: int
    source_index: int
    source_box: Box
    target_rank: int
    target_index: int
    target_box: Box

    def reversed(self) -> Transfer:
        """The same block on its way back, as the adjoint sends it."""
        return Transfer(
            self.target_rank,
            self.target_index,
            self.target_box,
            self.source_rank,
            self.source_index,
            self.source_box,
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """All blocks that move when every rank fetches its targets from the sources."""

    sources: Layout
    targets: Layout
    transfers: tuple[Transfer, ...]

    @cached_property
    def reversed(self) -> Plan:
        """The adjoint's plan: every block goes back to where it came from."""
        return Plan(self.targets, self.sources, tuple(t.reversed() for t in self.transfers))

    def between(self, source_rank: int, target_rank: int) -> tuple[Transfer, ...]:
        """The blocks of one message, in the order in which both ends pack and unpack them."""
        return self._messages.get((source_rank, target_rank), ())

    @cached_property
    def _messages(self) -> dict[tuple[int, int], tuple[Transfer, ...]]:
        found: dict[tuple[int, int], list[Transfer]] = {}
        for transfer in self.transfers:
            found.setdefault((transfer.source_rank, transfer.target_rank), []).append(transfer)
        return {pair: tuple(transfers) for pair, transfers in found.items()}

    def pixels_sent(self, rank: int) -> int:
        """Pixels that ``rank`` sends to other ranks."""
        return sum(
            t.source_box.size
            for t in self.transfers
            if t.source_rank == rank and t.target_rank != rank
        )


@lru_cache(maxsize=512)
def plan_transfers(
    sources: Layout, targets: Layout, periods: tuple[int | None, ...] | None = None
) -> Plan:
    """Work out the blocks that fill every target from the sources.

    Parameters
    ----------
    sources
        Boxes that each rank holds. No two may overlap.
    targets
        Boxes that each rank wants. They may overlap, and reach outside the image: what no source
        holds is left at zero.
    periods
        Length of each axis that wraps around, None for one that does not.

    Raises
    ------
    ValueError
        If two sources overlap: a target's pixel would have two values.
    """
    held = [
        (rank, index, box)
        for rank, boxes in enumerate(sources)
        for index, box in enumerate(boxes)
        if not box.is_empty
    ]
    overlap = find_overlap(box for _, _, box in held)
    if overlap is not None:
        (rank, _, box), (other_rank, _, other) = held[overlap[0]], held[overlap[1]]
        raise ValueError(
            f"source boxes overlap: {box} of rank {rank} and {other} of rank {other_rank}"
        )
    transfers = []
    for target_rank, boxes in enumerate(targets):
        for target_index, target in enumerate(boxes):
            if target.is_empty:
                continue
            for offset in _offsets(target, periods):
                image = target.shift(tuple(-d for d in offset))
                for source_rank, source_index, source in held:
                    meet = image & source
                    if not meet.is_empty:
                        transfers.append(
                            Transfer(
                                source_rank,
                                source_index,
                                meet,
                                target_rank,
                                target_index,
                                meet.shift(offset),
                            )
                        )
    return Plan(sources, targets, tuple(transfers))


def _offsets(target: Box, periods: Sequence[int | None] | None) -> list[tuple[int, ...]]:
    """The whole periods by which a target must be moved to meet the image."""
    if periods is None:
        return [(0,) * target.ndim]
    choices = []
    for start, stop, period in zip(target.start, target.stop, periods, strict=True):
        if period is None:
            choices.append([0])
        else:
            choices.append([k * period for k in range(start // period, (stop - 1) // period + 1)])
    return list(product(*choices))
