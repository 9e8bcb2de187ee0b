"""Where an operator keeps its tensors: attributes, lists, and what its functions closed over.

Reads and replaces them; who gets which tensor, and why, is in ``trained``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Slot:
    """A place that holds a tensor.

    Parameters
    ----------
    holder
        A dictionary (an object's attributes), a list, a tuple, or a cell of a function's closure.
    key
        Where in the holder; None in a cell.
    """

    holder: Any
    key: Any

    def get(self) -> Any:
        """What is there now; None if nothing."""
        if isinstance(self.holder, CellType):
            return self.holder.cell_contents
        if isinstance(self.holder, dict):
            return self.holder.get(self.key)
        return self.holder[self.key]

    def put(self, value: Any) -> None:
        """Put something else there, past the checks of attribute assignment.

        Raises
        ------
        TypeError
            If it is a place in a tuple.
        """
        if isinstance(self.holder, tuple):
            raise TypeError(
                f"an operator keeps a tensor that needs a gradient in a tuple (entry {self.key}), "
                "where it cannot be replaced: keep it in an attribute or a list"
            )
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.key] = value


def tensor_slots(owner: Any) -> Iterator[tuple[Slot, torch.Tensor]]:
    """The places in which an operator, and what it is made of, keeps tensors.

    In an order that depends on how it was built alone. Tensors in other objects than modules,
    lists, tuples, dictionaries and functions are not found.
    """
    seen: dict[int, Any] = {}
    waiting = [owner]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        inside: list[Any] = []
        for slot, value in _entries(item):
            if isinstance(value, torch.Tensor):
                yield slot, value
            elif isinstance(value, _CONTAINERS):
                inside.append(value)
        waiting.extend(reversed(inside))


def trained_slots(owner: Any) -> list[tuple[Slot, torch.Tensor]]:
    """Those that hold a tensor in need of a gradient."""
    return [(slot, tensor) for slot, tensor in tensor_slots(owner) if tensor.requires_grad]


def origins(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The leaves that a tensor's gradient goes to; of a leaf, itself."""
    if tensor.grad_fn is None:
        return [tensor] if tensor.requires_grad else []
    found: list[torch.Tensor] = []
    seen: set[Any] = set()
    waiting: list[Any] = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(following for following, _ in node.next_functions)
    return found


_CONTAINERS = (
    nn.Module,
    dict,
    list,
    tuple,
    FunctionType,
    MethodType,
    functools.partial,
    CellType,
)


def _entries(item: Any) -> Iterator[tuple[Slot, Any]]:
    if isinstance(item, nn.Module):
        # Its parameters, buffers and submodules are dictionaries among its attributes.
        item = item.__dict__
    if isinstance(item, dict):
        yield from ((Slot(item, key), value) for key, value in list(item.items()))
    elif isinstance(item, (list, tuple)):
        # Past an own __iter__, as of a list whose entries are on other ranks.
        values = list.__iter__(item) if isinstance(item, list) else tuple.__iter__(item)
        yield from ((Slot(item, number), value) for number, value in enumerate(values))
    elif isinstance(item, FunctionType):
        parts = (*(item.__closure__ or ()), item.__defaults__, item.__kwdefaults__)
        yield from ((Slot(parts, number), part) for number, part in enumerate(parts))
    elif isinstance(item, MethodType):
        yield Slot((), None), item.__self__
        yield Slot((), None), item.__func__
    elif isinstance(item, functools.partial):
        parts = (item.func, item.args, item.keywords)  # type: ignore[assignment]
        yield from ((Slot(parts, number), part) for number, part in enumerate(parts))
    elif isinstance(item, CellType):
        try:
            yield Slot(item, None), item.cell_contents
        except ValueError:  # a cell that is not filled yet
            return
