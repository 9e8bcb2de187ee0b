"""Writing a checkpoint: every rank its own boxes, under a name that only a whole one gets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from shardinv.checkpoint import folder as folders
from shardinv.checkpoint.errors import CheckpointError
from shardinv.checkpoint.generators import generator_parts
from shardinv.checkpoint.parts import Part, sharded_part
from shardinv.checkpoint.ranks import meet, on_main
from shardinv.checkpoint.tree import Node, encode, leaves
from shardinv.exchange import Communicator, DisagreementError, RankError, publish
from shardinv.geometry import deal
from shardinv.tensor import ShardedTensor


def save(comm: Communicator, folder: Path, x: Any, state: Any, keep: int | None) -> Path:
    """Write a checkpoint. Every rank must call it; see ``DistributedContext.save``."""
    from shardinv.checkpoint.storage import write_parts

    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1, or None to keep all, got {keep}")
    tensors: dict[str, torch.Tensor] = {}
    try:
        content: Node | TypeError = {
            name: encode(value, name, tensors) for name, value in (("x", x), ("state", state))
        }
    except TypeError as error:
        content = error
    text = _agreed(comm, content, str(folder))
    parts = [*_own_parts(comm, tensors), *generator_parts(comm)]
    written = on_main(
        comm, "beginning a checkpoint", lambda: folders.begin(folder), CheckpointError
    )
    write_parts(comm, written, parts)
    random = {
        part.name: [comm.size, part.shape[1]] for part in parts if part.name.startswith("random.")
    }
    path = on_main(
        comm,
        "finishing a checkpoint",
        lambda: folders.finish(
            written, {"ranks": comm.size, "random": random, "content": json.loads(text)}
        ),
        CheckpointError,
    )
    if comm.rank == 0 and keep is not None:
        folders.prune(folder, keep)
    return path


def _agreed(comm: Communicator, content: Node | TypeError, folder: str) -> str:
    """The content as text, the same on every rank.

    Raises
    ------
    TypeError
        If this rank has something that can't be saved; on the other ranks RankError.
    DisagreementError
        If ranks save different things, naming the first of them.
    """
    what = "what is to be saved"
    problem = str(content) if isinstance(content, TypeError) else None
    text = "" if problem is not None else json.dumps(content)
    digest = hashlib.sha256(text.encode()).hexdigest()
    meet(comm)
    told = publish(comm, what, (problem, folder, digest))
    if isinstance(content, TypeError):
        raise content
    for rank, (other, _, _) in enumerate(told):
        if other is not None:
            raise RankError(f"rank {rank} can't save what it was given: {other}")
    places = [place for _, place, _ in told]
    if any(place != places[0] for place in places):
        raise DisagreementError(
            f"ranks save to different folders: {places}. A checkpoint is one folder that every "
            "rank can write to"
        )
    if any(other != digest for _, _, other in told):
        mine = leaves({"kind": "dict", "items": list(content.items())}, "")
        raise DisagreementError(_difference(publish(comm, f"{what}, in detail", mine)))
    return text


def _difference(told: list[dict[str, str]]) -> str:
    names = [name for answer in told for name in answer]
    for name in dict.fromkeys(names):
        values = [answer.get(name, "nothing") for answer in told]
        if any(value != values[0] for value in values):
            held = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            where = name.removeprefix("['").replace("']", "", 1)
            return (
                f"ranks disagree on what is to be saved as {where}: {held}. Numbers and strings "
                "must be the same on every rank, tensors have the same shape and layout"
            )
    return "ranks disagree on the order in which things are to be saved: build them alike"


def _own_parts(comm: Communicator, tensors: dict[str, torch.Tensor]) -> list[Part]:
    """What this rank writes: its box of each sharded tensor, and its share of the plain ones."""
    parts = [sharded_part(name, x) for name, x in tensors.items() if isinstance(x, ShardedTensor)]
    plain = {name: x for name, x in tensors.items() if not isinstance(x, ShardedTensor)}
    hands = deal([float(x.numel() * x.element_size()) for x in plain.values()], comm.size)
    names = list(plain)
    for index in hands[comm.rank]:
        values = plain[names[index]].detach()
        parts.append(Part(names[index], tuple(values.shape), (0,) * values.ndim, values))
    return parts
