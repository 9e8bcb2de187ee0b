"""The plans of ``torch.distributed.checkpoint``: which rank writes or reads which chunk.

Its own planners know plain tensors and DTensor; these know boxes. What was written by some boxes is
read into others by its own re-sharding.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from shardinv.checkpoint.errors import CheckpointError
from shardinv.checkpoint.parts import Part


class PartsSaver(SavePlanner):
    """Writes the parts that this rank was given, in chunks."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = {part.name: part for part in parts}
        self.plan = SavePlan([])

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Nothing to set up: the parts are known."""

    def create_local_plan(self) -> SavePlan:
        """One item for each chunk of this rank's parts."""
        items = []
        for part in self.parts.values():
            properties = TensorProperties(dtype=part.values.dtype)
            for offset, sizes in part.chunks():
                chunk = ChunkStorageMetadata(torch.Size(offset), torch.Size(sizes))
                data = TensorWriteData(chunk, properties, torch.Size(part.shape))
                index = MetadataIndex(part.name, chunk.offsets)
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The chunks of all ranks, which are disjoint already."""
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Keep the plan."""
        self.plan = new_plan
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """The values of a chunk."""
        assert write_item.tensor_data is not None
        chunk = write_item.tensor_data.chunk
        return self.parts[write_item.index.fqn].view(chunk.offsets, chunk.sizes)


class PartsLoader(LoadPlanner):
    """Fills the parts that this rank was given."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = {part.name: part for part in parts}
        self.metadata: Metadata | None = None

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take note of what was saved."""
        self.metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        """One item for each saved chunk that meets one of this rank's parts."""
        assert self.metadata is not None
        items: list[ReadItem] = []
        for part in self.parts.values():
            if part.values.numel() == 0:
                continue
            saved = self.metadata.state_dict_metadata.get(part.name)
            if not isinstance(saved, TensorStorageMetadata) or tuple(saved.size) != part.shape:
                raise CheckpointError(
                    f"the checkpoint's data don't hold {part.name} of shape {part.shape}: it was "
                    "changed after it was written"
                )
            chunk = ChunkStorageMetadata(torch.Size(part.offset), part.values.shape)
            items += create_read_items_for_chunk_list(part.name, saved, [chunk])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Every rank reads what it needs."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Keep the plan."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> NoReturn:
        """Only tensors are saved."""
        raise CheckpointError(f"the checkpoint's data hold {read_item.dest_index.fqn}, no tensor")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Where the values of an item belong."""
        values = self.parts[read_item.dest_index.fqn].values
        places = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return values[tuple(slice(a, a + n) for a, n in places)]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing to do: the values were copied to where they belong."""
