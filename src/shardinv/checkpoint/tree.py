"""Nested values as text with names where the tensors were, and back.

Dictionaries, lists and tuples of tensors, numbers and strings, as ``state_dict()`` gives them.
Tensors are written elsewhere; here they leave their name, shape and type. Nothing is pickled: a
checkpoint runs no code when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from shardinv.checkpoint.errors import CheckpointError
from shardinv.checkpoint.parts import describe_sharding
from shardinv.tensor import ShardedTensor

Tensors = dict[str, torch.Tensor]
Node = Any
"""What JSON has: a number, string, None, or a dictionary with a ``kind``."""


def encode(value: Any, name: str, tensors: Tensors) -> Node:
    """Turn a nested value into what JSON has.

    Parameters
    ----------
    value
        Tensors (plain or sharded), numbers, strings, None; lists, tuples and dictionaries of them;
        anything with a ``state_dict()``.
    name
        What it is called.
    tensors
        Its tensors are added here, by name.

    Raises
    ------
    TypeError
        If it holds something else, naming where.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return _array(value, name, tensors)
    if isinstance(value, (int, float)):
        # Also of classes of their own (enumerations): read back, they are plain numbers.
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, complex):
        return {"kind": "complex", "parts": [value.real, value.imag]}
    if isinstance(value, torch.Tensor):
        return _tensor(value, name, tensors)
    if isinstance(value, Mapping):
        items = []
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool)):
                raise TypeError(
                    f"{name} has the key {key!r}: only strings and numbers can be saved as keys"
                )
            items.append([key, encode(item, f"{name}[{key!r}]", tensors)])
        return {"kind": "dict", "items": items}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        items = [encode(item, f"{name}[{place}]", tensors) for place, item in enumerate(value)]
        return {"kind": kind, "items": items}
    if callable(getattr(value, "state_dict", None)):
        return encode(value.state_dict(), name, tensors)
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which can't be saved: "
        "there may be tensors, numbers, strings, lists, tuples and dictionaries of them, and what "
        "has a state_dict()"
    )


def _tensor(value: torch.Tensor, name: str, tensors: Tensors) -> Node:
    node: dict[str, Any] = {
        "kind": "tensor",
        "name": name,
        "dtype": str(value.dtype).removeprefix("torch."),
    }
    if isinstance(value, ShardedTensor):
        shape: tuple[int, ...] = tuple(value.shape)
        node["sharded"] = describe_sharding(value)
    else:
        if value.layout is not torch.strided or value.is_quantized:
            raise TypeError(f"{name} is sparse or quantised, which can't be saved: use to_dense()")
        shape = tuple(value.shape)
    tensors[name] = value
    return node | {"shape": list(shape)}


def _array(value: np.generic | np.ndarray, name: str, tensors: Tensors) -> Node:
    try:
        # A copy: torch refuses arrays that may not be written to.
        tensor = torch.from_numpy(np.array(value))
    except TypeError:
        raise TypeError(f"{name} is an array of {value.dtype}, which can't be saved") from None
    scalar = isinstance(value, np.generic)
    return _tensor(tensor, name, tensors) | {"kind": "number" if scalar else "array"}


def decode(node: Node, tensor: Callable[[Node], torch.Tensor]) -> Any:
    """The value of a node; ``tensor`` gives the tensor of a node that names one."""
    if not isinstance(node, dict):
        return node
    kind = node["kind"]
    if kind == "complex":
        return complex(*node["parts"])
    if kind == "dict":
        return {key: decode(item, tensor) for key, item in node["items"]}
    if kind in ("list", "tuple"):
        items = [decode(item, tensor) for item in node["items"]]
        return tuple(items) if kind == "tuple" else items
    if kind == "tensor":
        return tensor(node)
    if kind in ("array", "number"):
        array = tensor(node).cpu().numpy()
        return array[()] if kind == "number" else array
    raise CheckpointError(f"the checkpoint holds a {kind!r}, which this version can't read")


def tensor_nodes(node: Node) -> Iterator[Node]:
    """The nodes that name a tensor."""
    if not isinstance(node, dict):
        return
    if "name" in node:
        yield node
    for item in node.get("items", ()):
        yield from tensor_nodes(item[1] if node["kind"] == "dict" else item)


def leaves(node: Node, name: str) -> dict[str, str]:
    """What lies where, in words: to say where two values differ."""
    if isinstance(node, dict) and node["kind"] in ("dict", "list", "tuple"):
        found: dict[str, str] = {}
        for place, item in enumerate(node["items"]):
            key, child = item if node["kind"] == "dict" else (place, item)
            found |= leaves(child, f"{name}[{key!r}]")
        return found or {name: f"an empty {node['kind']}"}
    if isinstance(node, dict) and "name" in node:
        words = f"a tensor {tuple(node['shape'])} {node['dtype']}"
        if node.get("sharded"):
            mesh = " × ".join(str(n) for n in node["sharded"]["mesh"])
            words += f" sharded on a mesh of {mesh}"
        return {name: words}
    if isinstance(node, dict):
        return {name: str(complex(*node["parts"]))}
    return {name: repr(node)}
