"""Between layouts: cutting a replicated tensor, gathering a sharded one, other boxes.

Each is one verb of :mod:`shardinv.exchange` applied to the local parts.
"""

from __future__ import annotations

import torch

from shardinv.exchange import TensorSpec, assemble, cut_boxes, fetch
from shardinv.geometry import Layout, plan_transfers
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
    whole = assemble(comm, [local], x.sharding.layout, spec, _token(x))
    if shape is None:
        return whole
    if x.folded is not None:
        return whole.reshape(shape)
    return _spatial_back(whole, x)


def realign(x: ShardedTensor, sharding: Sharding) -> ShardedTensor:
    """The same tensor in other boxes. Only pixels that change hands are sent."""
    if x.sharding == sharding:
        return x
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
    local = _spatial_last(x)
    lead = local.shape[: local.ndim - x.sharding.ndim]
    plan = plan_transfers(x.sharding.layout, targets, periods)
    pieces, _ = fetch(
        x.sharding.comm, [local], plan, TensorSpec(tuple(lead), x.dtype), _token(x), operation
    )
    return pieces


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
