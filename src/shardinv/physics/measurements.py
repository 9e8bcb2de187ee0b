"""Lists with one entry an operator, each held by the rank that owns the operator.

A measurement is a tensor, or a ``TensorList`` where one operator makes several.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from deepinv.utils.tensorlist import TensorList

from shardinv.exchange import Communicator, FirstUse, TensorSpec, gather_list

T = TypeVar("T")
Measurement: TypeAlias = torch.Tensor | TensorList


class RemoteEntryError(LookupError):
    """An entry was touched that another rank holds."""


@dataclass(frozen=True)
class Ownership:
    """Which rank owns which entry of a list.

    Parameters
    ----------
    hands
        The indices of the entries of each rank.
    rank
        This rank.
    """

    hands: tuple[tuple[int, ...], ...]
    rank: int

    @property
    def count(self) -> int:
        """Number of entries in all."""
        return sum(len(hand) for hand in self.hands)

    @property
    def mine(self) -> tuple[int, ...]:
        """Indices of this rank's entries."""
        return self.hands[self.rank]

    def owner(self, index: int) -> int:
        """The rank that owns an entry."""
        return next(rank for rank, hand in enumerate(self.hands) if index in hand)


class _Elsewhere:
    """Stands where another rank's entry would be."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Elsewhere:
        return self

    def __repr__(self) -> str:
        return "<elsewhere>"


_ELSEWHERE = _Elsewhere()


class OwnedList(list[Any], Generic[T]):
    """A list as long as the whole, of which this rank holds its own entries.

    Touching another rank's entry raises :class:`RemoteEntryError`, which says who has it.

    Parameters
    ----------
    entries
        This rank's entries, by index.
    ownership
        Who owns what.
    what
        What an entry is, in words, for the error.
    """

    advice = "use it through the distributed blocks"

    def __init__(self, entries: Mapping[int, T], ownership: Ownership, what: str) -> None:
        if set(entries) != set(ownership.mine):
            raise ValueError(
                f"rank {ownership.rank} owns entries {list(ownership.mine)}, got {sorted(entries)}"
            )
        super().__init__(entries.get(i, _ELSEWHERE) for i in range(ownership.count))
        self.ownership = ownership
        self.what = what

    def local_items(self) -> Iterator[tuple[int, T]]:
        """This rank's entries with their indices."""
        for index in self.ownership.mine:
            yield index, super().__getitem__(index)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[index] for index in range(*item.indices(len(self)))]
        entry = super().__getitem__(item)
        if entry is _ELSEWHERE:
            index = range(len(self))[item]
            raise RemoteEntryError(
                f"{self.what} {index} is on rank {self.ownership.owner(index)}; rank "
                f"{self.ownership.rank} has {list(self.ownership.mine)}: {self.advice}"
            )
        return entry

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a list of {self.what}s spread over ranks cannot be pickled: {self.advice}"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnedList[T]:
        twin: OwnedList[T] = type(self).__new__(type(self))
        list.__init__(twin, (deepcopy(entry, memo) for entry in list.__iter__(self)))
        twin.__dict__.update(self.__dict__)
        return twin

    def __repr__(self) -> str:
        held = ", ".join(f"{index}: {entry!r}" for index, entry in self.local_items())
        return (
            f"{type(self).__name__}({len(self)} entries, on rank {self.ownership.rank}: {{{held}}})"
        )


class OwnedMeasurements(OwnedList[Measurement]):
    """Measurements that stay on the ranks whose operators made them.

    What ``physics(x, gather=False)`` returns. Every distributed block takes it in place of the full
    list; :meth:`gather` brings the rest.

    Parameters
    ----------
    entries
        This rank's measurements, by index of the operator.
    ownership
        Who owns what.
    comm
        The group.
    first_use
        Where shapes of the other ranks' measurements are remembered.
    token
        Ties the measurements to the operation that made them, for autograd.
    key
        What kind of measurements these are: lists of one key have the same shapes, so the ranks
        need not ask each other again. None where that isn't known.
    """

    advice = (
        "call .gather() for the full list on every rank, or use it through the distributed blocks"
    )

    def __init__(
        self,
        entries: Mapping[int, Measurement],
        ownership: Ownership,
        comm: Communicator,
        first_use: FirstUse,
        token: torch.Tensor,
        key: Hashable | None = None,
    ) -> None:
        super().__init__(entries, ownership, "measurement")
        self.comm = comm
        self.first_use = first_use
        self.token = token
        self.key = key

    def gather(self) -> TensorList:
        """All measurements, on every rank. One message to each other rank."""
        specs = self._specs()
        tensors = [t for _, entry in self.local_items() for t in entry_tensors(entry)]
        flat_specs = [[s for entry in own for s in entry.tensors] for own in specs]
        flat = iter(gather_list(self.comm, tensors, flat_specs, self.token))
        found: dict[int, Measurement] = {}
        for hand, own in zip(self.ownership.hands, specs, strict=True):
            for index, spec in zip(hand, own, strict=True):
                parts = [next(flat) for _ in spec.tensors]
                found[index] = TensorList(parts) if spec.nested else parts[0]
        result = TensorList([])
        result.x = [found[index] for index in range(self.ownership.count)]
        return result

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> OwnedMeasurements:
        """Apply a function to every tensor, each on its own rank."""
        mapped = {
            index: TensorList([function(t) for t in entry.x])
            if isinstance(entry, TensorList)
            else function(entry)
            for index, entry in self.local_items()
        }
        return self.like(mapped)

    def like(
        self, entries: Mapping[int, Measurement], key: Hashable | None = None
    ) -> OwnedMeasurements:
        """Other measurements of the same operators; of any shapes, unless a key says which."""
        return OwnedMeasurements(
            entries, self.ownership, self.comm, self.first_use, self.token, key
        )

    def to(self, *args: Any, **kwargs: Any) -> OwnedMeasurements:
        """``tensor.to`` of every tensor."""
        twin = self.map(lambda t: t.to(*args, **kwargs))
        twin.key = (self.key, "to", str(args), str(kwargs)) if self.key is not None else None
        return twin

    def detach(self) -> OwnedMeasurements:
        """Every tensor cut from the graph."""
        twin = self.map(torch.Tensor.detach)
        twin.token, twin.key = self.token.detach(), self.key
        return twin

    def clone(self) -> OwnedMeasurements:
        """A copy of every tensor."""
        twin = self.map(torch.Tensor.clone)
        twin.key = self.key
        return twin

    @property
    def device(self) -> torch.device:
        """Device of the measurements."""
        return self.comm.device

    @property
    def shape(self) -> list[Any]:
        """Shapes of all measurements, also the other ranks'."""
        by_index = {
            index: [spec.shape for spec in own.tensors] if own.nested else own.tensors[0].shape
            for hand, specs in zip(self.ownership.hands, self._specs(), strict=True)
            for index, own in zip(hand, specs, strict=True)
        }
        return [by_index[index] for index in range(self.ownership.count)]

    def numel(self) -> int:
        """Number of values in all measurements, also the other ranks'."""
        return sum(
            prod(spec.shape) for own in self._specs() for entry in own for spec in entry.tensors
        )

    def _specs(self) -> list[list[EntrySpec]]:
        mine = [EntrySpec.of(entry) for _, entry in self.local_items()]
        return self.first_use.facts("the shapes of measurements", self.key, mine)


@dataclass(frozen=True)
class EntrySpec:
    """Shapes and types of one operator's measurement."""

    tensors: tuple[TensorSpec, ...]
    nested: bool

    @classmethod
    def of(cls, entry: Measurement) -> EntrySpec:
        """The spec of a measurement."""
        return cls(
            tuple(TensorSpec.of(t) for t in entry_tensors(entry)), isinstance(entry, TensorList)
        )


def entry_tensors(entry: Measurement) -> Sequence[torch.Tensor]:
    """The tensors of one operator's measurement."""
    return list(entry.x) if isinstance(entry, TensorList) else [entry]
