"""Reading a checkpoint, by as many ranks as there are now and into the boxes that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shardinv.checkpoint import folder as folders
from shardinv.checkpoint.errors import CheckpointError
from shardinv.checkpoint.generators import generator_targets, restore_generators
from shardinv.checkpoint.parts import Part, placed_part, saved_sharding
from shardinv.checkpoint.ranks import on_main
from shardinv.checkpoint.tree import Node, decode, tensor_nodes
from shardinv.exchange import Communicator
from shardinv.tensor import ShardedTensor, Sharding

ShardingOf = Callable[[Sequence[int]], Sharding]


class Loaded(NamedTuple):
    """What a checkpoint held."""

    x: Any
    state: Any


@dataclass(frozen=True)
class Wanted:
    """In what layout tensors are wanted.

    Parameters
    ----------
    layout
        ``"replicated"``, ``"sharded"``, or None: as each was saved.
    like
        Lay what has its shape out as this tensor.
    sharding_of
        The sharding for an image of a spatial shape, of the mesh that was asked for or chosen.
    mesh_asked
        Whether a mesh was asked for.
    """

    layout: str | None
    like: torch.Tensor | None
    sharding_of: ShardingOf
    mesh_asked: bool

    def of(self, comm: Communicator, node: Node, image: bool) -> Sharding | None:
        """The sharding for a saved tensor; None for the whole on every rank.

        Parameters
        ----------
        comm
            The group.
        node
            The saved tensor.
        image
            Whether it is an image, which may be sharded even if it was saved whole.
        """
        saved = node.get("sharded")
        if saved is None and not (image and self.layout == "sharded"):
            return None
        if self.layout == "replicated":
            return None
        spatial = tuple(saved["spatial"] if saved is not None else node["shape"][2:])
        if isinstance(self.like, ShardedTensor) and self.like.sharding.shape == spatial:
            return self.like.sharding
        if saved is not None and not self.mesh_asked:
            same = saved_sharding(comm, saved)
            if same is not None:
                return same
        return self.sharding_of(spatial)


def load(comm: Communicator, folder: Path, wanted: Wanted, random: bool) -> Loaded:
    """Read a checkpoint. Every rank must call it; see ``DistributedContext.load``."""
    from shardinv.checkpoint.storage import read_parts

    what = f"finding a checkpoint in {folder}"
    path, manifest = on_main(comm, what, lambda: _open(folder), CheckpointError)
    content: dict[str, Node] = manifest["content"]
    images = _check_like(content["x"], wanted, path)
    parts: dict[str, Part] = {}
    shardings: dict[str, Sharding | None] = {}
    for where, node in content.items():
        for leaf in tensor_nodes(node):
            shape = tuple(leaf["shape"])
            image = (where == "x" and len(shape) > 2) or shape in images
            sharding = wanted.of(comm, leaf, image)
            shardings[leaf["name"]] = sharding
            parts[leaf["name"]] = _target(comm, leaf, sharding)
    generators = generator_targets(comm, manifest["random"]) if random else []
    read_parts(comm, path, [*parts.values(), *generators])
    restore_generators(comm, generators)

    def tensor(node: Node) -> torch.Tensor:
        return _tensor(node, parts[node["name"]].values, shardings[node["name"]])

    return Loaded(decode(content["x"], tensor), decode(content["state"], tensor))


def _open(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folders.find(folder)
    return path, folders.read_manifest(path)


def _check_like(node: Node, wanted: Wanted, path: Path) -> set[tuple[int, ...]]:
    """The shapes of the images that were saved as x.

    Raises
    ------
    CheckpointError
        If none of them has the shape of ``like``.
    """
    shapes = {tuple(leaf["shape"]) for leaf in tensor_nodes(node) if len(leaf["shape"]) > 2}
    like = wanted.like
    if like is not None and tuple(like.shape) not in shapes:
        held = ", ".join(str(shape) for shape in sorted(shapes)) or "no image"
        raise CheckpointError(
            f"{path} holds as x {held}; like has shape {tuple(like.shape)}. Was it saved by a run "
            "with other settings?"
        )
    return shapes


def _target(comm: Communicator, node: Node, sharding: Sharding | None) -> Part:
    """Room for this rank's part of a saved tensor."""
    dtype = getattr(torch, node["dtype"])
    saved = node.get("sharded")
    folded = saved["folded"] if saved is not None else None
    shape = tuple(node["shape"])
    if folded is not None:
        shape = (*shape[:-1], *folded, *saved["spatial"])
    # Numpy's are wanted on the host, all others where the ranks compute.
    device = comm.device if node["kind"] == "tensor" else torch.device("cpu")
    if sharding is None:
        values = torch.empty(shape, dtype=dtype, device=device)
        return Part(node["name"], shape, (0,) * len(shape), values)
    trailing = saved["trailing"] if saved is not None else 0
    end = len(shape) - trailing
    local = (*shape[: end - sharding.ndim], *sharding.box.shape, *shape[end:])
    values = torch.empty(local, dtype=dtype, device=device)
    return placed_part(node["name"], values, sharding, trailing)


def _tensor(node: Node, values: torch.Tensor, sharding: Sharding | None) -> torch.Tensor:
    if sharding is None:
        return values.reshape(node["shape"])
    saved = node.get("sharded") or {"trailing": 0, "folded": None}
    if saved["folded"] is None:
        return ShardedTensor(values, sharding, saved["trailing"])
    lead = values.shape[: len(node["shape"]) - 1]
    return ShardedTensor(values.reshape(*lead, -1), sharding, 0, tuple(saved["folded"]))


def newest(comm: Communicator, folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder, the same on every rank."""
    return on_main(
        comm, f"finding the newest checkpoint in {folder}", lambda: folders.latest(folder)
    )
