"""Between layouts: cutting a replicated tensor, gathering a sharded one, other boxes.

Each is one verb of :mod:`shardinv.exchange` applied to the local parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardinv.exchange import (
    Communicator,
    Move,
    TensorSpec,
    assemble,
    begin_fetch,
    cut_boxes,
    fetch,
    same_need,
)
from shardinv.geometry import Layout, plan_transfers
from shardinv.tensor.errors import LayoutError
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding


def scatter(x: torch.Tensor, sharding: Sharding) -> ShardedTensor:
    """Keep this rank's box of a replicated tensor ``(*lead, *spatial)``. No message.

    The gradient of ``x`` is replicated: backward, the boxes' cotangents are gathered.
    """
    (local,), _ = cut_boxes(sharding.comm, x, sharding.layout)
    return ShardedTensor(local, sharding)


def gather(x: ShardedTensor) -> torch.Tensor:
    """The whole of a sharded tensor on every rank, as a replicated tensor.

    Costs each rank (R-1)/R of the image. The gradient stays in its box.
    """
    local, shape = _spatial_last(x), None
    if x.folded is not None or x.trailing:
        shape = x.shape
    spec = TensorSpec((*local.shape[: local.ndim - x.sharding.ndim], *x.sharding.shape), x.dtype)
    comm = x.sharding.comm
    same_need(comm, "a sharded tensor", spec, local.requires_grad)
    whole = assemble(comm, [local], x.sharding.layout, spec, _token(x))
    if shape is None:
        return whole
    if x.folded is not None:
        return whole.reshape(shape)
    return _spatial_back(whole, x)


def realign(x: ShardedTensor, sharding: Sharding) -> ShardedTensor:
    """The same tensor in other boxes. Only pixels that change hands are sent.

    Raises
    ------
    LayoutError
        If the boxes are of an image of another size, or of other ranks, or the tensor is flattened.
    """
    if x.sharding == sharding:
        return x
    if x.sharding.shape != sharding.shape or x.sharding.comm is not sharding.comm:
        raise LayoutError(
            f"an image sharded as {x.sharding} cannot be brought into the boxes of another size or "
            f"group of ranks: {sharding}"
        )
    if x.folded is not None:
        raise LayoutError(
            f"a flattened sharded tensor {tuple(x.shape)} cannot be brought into other boxes: view "
            "it as an image first"
        )
    local = fetch_boxes(x, sharding.layout, operation="realign")[0]
    return ShardedTensor(_spatial_back(local, x), sharding, x.trailing)


def fetch_boxes(
    x: ShardedTensor,
    targets: Layout,
    *,
    periods: tuple[int | None, ...] | None = None,
    operation: str = "halo",
) -> list[torch.Tensor]:
    """Any boxes of a sharded tensor for every rank, spatial axes last.

    Parameters
    ----------
    x
        The tensor.
    targets
        The boxes that each rank wants; they may overlap, and wrap around where an axis has a
        period. Outside the image they are zero.
    periods
        Length of each axis that wraps around, None for one that does not.
    operation
        Name for the ledger.

    Returns
    -------
    list of torch.Tensor
        This rank's, ``(*lead, *trailing, *box.shape)``; local, with a graph whose adjoint adds
        overlapping cotangents back to their owners.
    """
    return fetch_tied(x, targets, periods=periods, operation=operation)[0]


def fetch_tied(
    x: ShardedTensor,
    targets: Layout,
    *,
    periods: tuple[int | None, ...] | None = None,
    operation: str = "halo",
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """As :func:`fetch_boxes`, where a rank may want no box at all.

    Returns
    -------
    list of torch.Tensor
        This rank's boxes.
    torch.Tensor
        The token to hand to the operation that ends the local work, which keeps a rank without a
        box in step with the others in a backward pass.
    """
    local = _spatial_last(x)
    lead = local.shape[: local.ndim - x.sharding.ndim]
    plan = plan_transfers(x.sharding.layout, targets, periods)
    spec = TensorSpec(tuple(lead), x.dtype)
    same_need(x.sharding.comm, "a sharded tensor", spec, local.requires_grad)
    return fetch(x.sharding.comm, [local], plan, spec, _token(x), operation)


def begin_boxes(x: ShardedTensor, targets: Layout, *, operation: str = "halo") -> Move:
    """Begin to fetch boxes where no gradient is asked for, to work while messages travel.

    Parameters
    ----------
    x, targets, operation
        As for :func:`fetch_boxes`. The local part must not be written to before the end.

    Returns
    -------
    Move
        ``finish()`` returns this rank's boxes. Every rank must call it.
    """
    local = _spatial_last(x)
    spec = TensorSpec(tuple(local.shape[: local.ndim - x.sharding.ndim]), x.dtype)
    plan = plan_transfers(x.sharding.layout, targets)
    return begin_fetch(x.sharding.comm, [local], plan, spec, operation)


def deliver(
    comm: Communicator,
    pieces: Sequence[torch.Tensor],
    layout: Layout,
    sharding: Sharding,
    spec: TensorSpec,
    token: torch.Tensor,
    *,
    operation: str,
) -> ShardedTensor:
    """A sharded tensor from pieces that the ranks computed; where pieces overlap they are added.

    Parameters
    ----------
    comm
        The group.
    pieces
        This rank's, ``(*lead, *box.shape)`` for each of its boxes in ``layout``.
    layout
        The boxes that each rank computed.
    sharding
        Where the pixels belong.
    spec
        The lead axes, as a shape, and the type.
    token
        From the operation that began the local work.
    operation
        Name for the ledger.
    """
    # Planned the other way round and reversed: sources may not overlap, these pieces may.
    plan = plan_transfers(sharding.layout, layout).reversed
    (local,), _ = fetch(comm, pieces, plan, spec, token, operation)
    return ShardedTensor(local, sharding)


def _token(x: ShardedTensor) -> torch.Tensor:
    # Every rank has a local part, if of no pixel: the parts themselves keep the ranks in step.
    return torch.zeros((), device=x.sharding.comm.device)


def _spatial_last(x: ShardedTensor) -> torch.Tensor:
    local = x.to_local()
    if x.folded is not None:
        return local.reshape(*local.shape[:-1], *x.folded, *x.box.shape)
    if not x.trailing:
        return local
    first = local.ndim - x.trailing - x.sharding.ndim
    axes = range(first, first + x.sharding.ndim)
    return local.movedim(tuple(axes), tuple(a + x.trailing for a in axes))


def _spatial_back(values: torch.Tensor, x: ShardedTensor) -> torch.Tensor:
    if not x.trailing:
        return values
    first = values.ndim - x.trailing - x.sharding.ndim
    axes = range(first, first + x.sharding.ndim)
    return values.movedim(tuple(a + x.trailing for a in axes), tuple(axes))
