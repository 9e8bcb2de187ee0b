"""Conversion to and from ``DTensor``, where other parts of PyTorch want one: checkpoints, FSDP.

A ``DTensor`` cuts an axis as ``torch.chunk`` does, all parts as long as the first and the last ones
short or empty, where a sharded tensor may have any boxes. Between the two lies one exchange of the
rows that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from shardinv.exchange import Communicator
from shardinv.geometry import Box, Partition, choose_mesh
from shardinv.tensor.axes import cut_axes
from shardinv.tensor.errors import LayoutError
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding
from shardinv.tensor.transfer import realign, scatter


def to_dtensor(x: ShardedTensor, device_mesh: DeviceMesh | None = None) -> DTensor:
    """The same tensor as a ``DTensor``, differentiably. Collective.

    Parameters
    ----------
    x
        Sharded tensor; its rows are moved where ``torch.chunk`` would cut elsewhere.
    device_mesh
        Mesh of the group's ranks, whose axes cut the first spatial axes in turn. Default: the
        tensor's own mesh, without the axes that are not cut.

    Raises
    ------
    LayoutError
        If the tensor is flattened, or the mesh has other ranks or more axes than the image.
    RuntimeError
        If there is no process group (one process started without torchrun), or this group is not
        all of ``torch.distributed``'s ranks and no mesh is given.
    """
    if x.folded is not None:
        raise LayoutError(
            f"a flattened sharded tensor {tuple(x.shape)} has no DTensor: view it as an image first"
        )
    comm, sharding = x.sharding.comm, x.sharding
    if device_mesh is None:
        axes = [axis for axis, parts in enumerate(sharding.mesh) if parts > 1] or [0]
        device_mesh = _mesh_of(sharding, axes)
    else:
        axes = list(range(device_mesh.ndim))
        if device_mesh.ndim > sharding.ndim:
            raise LayoutError(
                f"the DeviceMesh {tuple(device_mesh.shape)} has {device_mesh.ndim} axes, the image "
                f"{sharding.shape} has {sharding.ndim}"
            )
    order = _ranks(comm, device_mesh)
    boxes = _chunked(sharding.shape, axes, tuple(device_mesh.shape), order)
    parts = [1] * sharding.ndim
    for axis, count in zip(axes, device_mesh.shape, strict=True):
        parts[axis] = count
    aligned = realign(
        x, Sharding(comm, Partition(sharding.shape, boxes), tuple(parts), _unless_plain(order))
    )
    cut = cut_axes(x)
    return DTensor.from_local(
        aligned.to_local().contiguous(),
        device_mesh,
        [Shard(cut[axis]) for axis in axes],
        run_check=False,
        shape=torch.Size(x.shape),
        stride=_strides(x.shape),
    )


def from_dtensor(comm: Any, dt: DTensor, sharding: Sharding | None = None) -> ShardedTensor:
    """A ``DTensor`` image ``(B, C, *spatial)`` as a sharded tensor, differentiably.

    Parameters
    ----------
    comm
        The context, or its communicator.
    dt
        Cut along spatial axes on every axis of its mesh (no message), or replicated on all of them
        (this rank's box is kept; no message).
    sharding
        Boxes to bring it into, by one exchange; default: as it is cut, or near-square boxes where
        it is replicated.

    Raises
    ------
    LayoutError
        If the mesh has other ranks than the group, or the placements are others: partial sums,
        axes of batch or channels cut, cut on one mesh axis and replicated on another.
    """
    comm = getattr(comm, "comm", comm)
    mesh = dt.device_mesh
    spatial = tuple(dt.shape[2:])
    if not spatial:
        raise LayoutError(f"an image (B, C, *spatial) is needed, got shape {tuple(dt.shape)}")
    order = _ranks(comm, mesh)
    placements = [
        (placement, count)
        for placement, count in zip(dt.placements, mesh.shape, strict=True)
        if count > 1 or placement.is_partial()
    ]
    if all(isinstance(placement, Replicate) for placement, _ in placements) and placements:
        if sharding is None:
            parts = choose_mesh(spatial, comm.size)
            sharding = Sharding(comm, Partition.split(spatial, parts), parts)
        return scatter(dt.to_local(), _checked(sharding, spatial))
    for placement, _ in placements:
        _check_placement(placement, dt)
    axes = [placement.dim % dt.ndim - 2 for placement, _ in placements]  # type: ignore[attr-defined]
    counts = tuple(count for _, count in placements)
    boxes = _chunked(spatial, axes, counts, order)
    lengths = [
        prod(c for a, c in zip(axes, counts, strict=True) if a == k) for k in range(len(spatial))
    ]
    held = Sharding(comm, Partition(spatial, boxes), tuple(lengths), _unless_plain(order))
    x = ShardedTensor(dt.to_local(), held)
    return x if sharding is None else realign(x, _checked(sharding, spatial))


def _check_placement(placement: Placement, dt: DTensor) -> None:
    if type(placement) is Shard and placement.dim % dt.ndim >= 2:
        return
    reason = "is not a cut along a spatial axis"
    if placement.is_partial():
        reason = "is a sum that has not been taken"
    elif isinstance(placement, Replicate):
        reason = "repeats boxes that another mesh axis cuts"
    elif type(placement) is Shard:
        reason = f"cuts axis {placement.dim}, of batch or channels"
    raise LayoutError(
        f"a DTensor of shape {tuple(dt.shape)} with placements {tuple(dt.placements)} on a mesh "
        f"{tuple(dt.device_mesh.shape)}: {placement} {reason}. Redistribute it first "
        "(dt.redistribute(placements=[Shard(2), …]), or Replicate() on all axes)"
    )


def _checked(sharding: Sharding, spatial: tuple[int, ...]) -> Sharding:
    if sharding.shape != spatial:
        raise LayoutError(f"boxes of {sharding.shape} px were given for an image of {spatial} px")
    return sharding


def _chunked(
    shape: Sequence[int], axes: Sequence[int], counts: Sequence[int], order: Sequence[int]
) -> tuple[Box, ...]:
    """The box of each rank where mesh axis k cuts spatial axis ``axes[k]`` into ``counts[k]``."""
    boxes = {}
    for cell, rank in zip(product(*(range(count) for count in counts)), order, strict=True):
        start, stop = [0] * len(shape), list(shape)
        for axis, place, count in zip(axes, cell, counts, strict=True):
            length = stop[axis] - start[axis]
            each = -(-length // count)
            first = start[axis]
            start[axis] = first + min(place * each, length)
            stop[axis] = first + min((place + 1) * each, length)
        boxes[rank] = Box(tuple(start), tuple(stop))
    return tuple(boxes[rank] for rank in range(len(boxes)))


def _mesh_of(sharding: Sharding, axes: Sequence[int]) -> DeviceMesh:
    comm = sharding.comm
    if not dist.is_initialized():
        raise RuntimeError(
            "a DTensor needs a process group, and this process was started without one: start it "
            "with torchrun, also for one rank"
        )
    if dist.get_world_size() != comm.size:
        raise RuntimeError(
            f"this group has {comm.size} of {dist.get_world_size()} ranks: a DeviceMesh is made by "
            "all ranks at once. Make one for the group and hand it over (device_mesh=)"
        )
    counts = tuple(sharding.mesh[axis] for axis in axes)
    order = sharding.order or tuple(range(comm.size))
    # A mesh makes groups of its own: once for each communicator.
    known: dict[Any, DeviceMesh] = vars(comm).setdefault("_device_meshes", {})
    if (counts, order) not in known:
        ranks = torch.tensor([comm.peer(rank) for rank in order]).reshape(counts)
        known[counts, order] = DeviceMesh(comm.device.type, ranks)
    return known[counts, order]


def _ranks(comm: Communicator, mesh: DeviceMesh) -> tuple[int, ...]:
    """The group's rank of each cell of a mesh, row-major."""
    peers = {comm.peer(rank): rank for rank in range(comm.size)}
    listed = [int(rank) for rank in mesh.mesh.flatten()]
    if sorted(listed) != sorted(peers):
        raise LayoutError(f"the DeviceMesh has the ranks {listed}, the group has {sorted(peers)}")
    return tuple(peers[rank] for rank in listed)


def _unless_plain(order: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if order == tuple(range(len(order))) else order


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
