"""Who must send what to whom, worked out from boxes alone.

Every rank has source boxes and wants target boxes; the messages are their intersections. A halo, a
gather, a re-alignment of shards: all are this, with other boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product

from shardinv.geometry.box import Box, find_overlap
from shardinv.geometry.partition import balanced_cuts

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

    def slab(self, axis: int, low: int, high: int) -> Transfer:
        """The part of the block between two places along an axis of the target's coordinates."""
        before = [0] * self.target_box.ndim
        after = [0] * self.target_box.ndim
        before[axis] = self.target_box.start[axis] - low
        after[axis] = high - self.target_box.stop[axis]
        return Transfer(
            self.source_rank,
            self.source_index,
            self.source_box.grow(before, after),
            self.target_rank,
            self.target_index,
            self.target_box.grow(before, after),
        )

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


@dataclass(frozen=True, slots=True)
class Landing:
    """How the blocks of one target come to lie in it, in the order in which they are laid.

    Parameters
    ----------
    transfers
        The blocks: in the order of the ranks they come from, or the target's own rank's first where
        that gives the same sum to the last bit.
    adds
        Of each, whether it is added to what lies there; one that comes first is copied.
    complete
        Whether the blocks that are copied leave no pixel out: nothing has to be zero before.
    """

    transfers: tuple[Transfer, ...]
    adds: tuple[bool, ...]
    complete: bool

    @classmethod
    def of(cls, target: Box, transfers: Sequence[Transfer]) -> Landing:
        """Work out the landing of the blocks of one target, given in the order of the ranks."""
        boxes = [t.target_box for t in transfers]
        if find_overlap(boxes) is None:
            covered = sum(box.size for box in boxes)
            return cls(tuple(transfers), (False,) * len(boxes), covered == target.size)
        ordered = list(transfers)
        base = _base(transfers)
        if base is not None:
            ordered.insert(0, ordered.pop(base))
        adds: list[bool] = []
        for place, transfer in enumerate(ordered):
            box = transfer.target_box
            adds.append(any(not (box & t.target_box).is_empty for t in ordered[:place]))
        covered = sum(t.target_box.size for t, add in zip(ordered, adds, strict=True) if not add)
        return cls(tuple(ordered), tuple(adds), covered == target.size)


def _base(transfers: Sequence[Transfer]) -> int | None:
    """The block that may be laid first: the rank's own, around all others, which don't meet.

    No pixel then has more than two terms, and the sum of two is the same in either order.
    """
    for place, own in enumerate(transfers):
        others = [t.target_box for t in (*transfers[:place], *transfers[place + 1 :])]
        if own.source_rank == own.target_rank and all(box in own.target_box for box in others):
            return place if find_overlap(others) is None else None
    return None


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

    @cached_property
    def busiest(self) -> int:
        """The most pixels that any rank sends and receives, both together."""
        traffic = [0] * len(self.sources)
        for t in self.transfers:
            if t.source_rank != t.target_rank:
                traffic[t.source_rank] += t.source_box.size
                traffic[t.target_rank] += t.source_box.size
        return max(traffic, default=0)

    def landings(self, rank: int) -> tuple[Landing, ...]:
        """How the blocks come to lie in each target of ``rank``."""
        known = self._landings.get(rank)
        if known is None:
            known = self._landings[rank] = tuple(
                Landing.of(target, self._arriving.get((rank, index), ()))
                for index, target in enumerate(self.targets[rank])
            )
        return known

    @cached_property
    def _landings(self) -> dict[int, tuple[Landing, ...]]:
        return {}

    @cached_property
    def _arriving(self) -> dict[tuple[int, int], tuple[Transfer, ...]]:
        """The blocks of each target, in the order of the ranks that they come from."""
        found: dict[tuple[int, int], list[Transfer]] = {}
        for transfer in self.transfers:
            found.setdefault((transfer.target_rank, transfer.target_index), []).append(transfer)
        return {
            target: tuple(sorted(transfers, key=lambda t: t.source_rank))
            for target, transfers in found.items()
        }

    def in_rounds(self, count: int) -> tuple[Plan, ...]:
        """The plan cut into ``count`` plans that move about as much each, one after the other.

        All blocks that meet in a pixel are in one round, so that their sum does not depend on the
        number of rounds. Blocks that no other meets are cut where they come from, so that all ranks
        send in every round. A block with fewer rows and columns than there are rounds takes part in
        some of them only.
        """
        if count <= 1:
            return (self,)
        known = self._rounds.get(count)
        if known is None:
            parts: list[list[Transfer]] = [[] for _ in range(count)]
            for transfers in self._arriving.values():
                if find_overlap(t.target_box for t in transfers) is None:
                    for transfer in transfers:
                        _deal_pieces(transfer, count, parts)
                else:
                    _deal_slabs(transfers, count, parts)
            known = self._rounds[count] = tuple(
                Plan(self.sources, self.targets, tuple(part)) for part in parts
            )
        return known

    @cached_property
    def _rounds(self) -> dict[int, tuple[Plan, ...]]:
        return {}


def _deal_pieces(transfer: Transfer, count: int, rounds: Sequence[list[Transfer]]) -> None:
    """Cut a block into a piece for each round; what stays on its rank moves in the first."""
    if transfer.source_rank == transfer.target_rank:
        rounds[0].append(transfer)
        return
    axis = _axis_to_cut(transfer.target_box, count)
    start, length = transfer.target_box.start[axis], transfer.target_box.shape[axis]
    cuts = [start + cut for cut in balanced_cuts(length, count)]
    for number, (low, high) in enumerate(pairwise(cuts)):
        if low < high:
            rounds[number].append(transfer.slab(axis, low, high))


def _deal_slabs(
    transfers: Sequence[Transfer], count: int, rounds: Sequence[list[Transfer]]
) -> None:
    """Cut all blocks of a target along common lines, with as much from elsewhere in each slab."""
    hull = Box(
        tuple(min(starts) for starts in zip(*(t.target_box.start for t in transfers), strict=True)),
        tuple(max(stops) for stops in zip(*(t.target_box.stop for t in transfers), strict=True)),
    )
    axis = _axis_to_cut(hull, count)
    # Pixels that arrive, at each place along the axis where their number changes.
    changes: dict[int, int] = {}
    for t in transfers:
        if t.source_rank != t.target_rank:
            box = t.target_box
            each = box.size // box.shape[axis]
            changes[box.start[axis]] = changes.get(box.start[axis], 0) + each
            changes[box.stop[axis]] = changes.get(box.stop[axis], 0) - each
    total = sum(t.target_box.size for t in transfers if t.source_rank != t.target_rank)
    cuts = [hull.start[axis]]
    passed, rate = 0, 0
    for low, high in pairwise(sorted(changes)):
        rate += changes[low]
        while (
            len(cuts) < count and rate and passed + rate * (high - low) >= total * len(cuts) / count
        ):
            row = low + round((total * len(cuts) / count - passed) / rate)
            cuts.append(min(max(row, cuts[-1]), hull.stop[axis]))
        passed += rate * (high - low)
    cuts += [hull.stop[axis]] * (count + 1 - len(cuts))
    for number, (low, high) in enumerate(pairwise(cuts)):
        for t in transfers:
            first, last = max(low, t.target_box.start[axis]), min(high, t.target_box.stop[axis])
            if first < last:
                rounds[number].append(t.slab(axis, first, last))


def _axis_to_cut(box: Box, count: int) -> int:
    """The first axis that is long enough (slabs of it are contiguous), or else the longest."""
    long_enough = [axis for axis, length in enumerate(box.shape) if length >= count]
    return long_enough[0] if long_enough else max(range(box.ndim), key=lambda a: box.shape[a])


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
