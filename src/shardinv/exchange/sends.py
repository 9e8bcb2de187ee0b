"""Sends and receives of flat messages between pairs of ranks: the lowest step above torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from shardinv.exchange.communicator import Communicator
from shardinv.exchange.tensors import as_bytes


def post(
    comm: Communicator,
    sends: Sequence[tuple[int, Tensor]],
    receives: Sequence[tuple[int, Tensor]],
) -> list[dist.Work]:
    """Start sends and receives of contiguous messages, as bytes.

    Messages between two ranks arrive in the order in which both post them.

    Parameters
    ----------
    comm
        The group.
    sends, receives
        The other rank and the message. None may be written to until the work is done.
    """
    operations = [
        dist.P2POp(dist.irecv, as_bytes(message), comm.peer(rank), comm.group)
        for rank, message in receives
    ]
    operations += [
        dist.P2POp(dist.isend, as_bytes(message), comm.peer(rank), comm.group)
        for rank, message in sends
    ]
    return dist.batch_isend_irecv(operations) if operations else []


def wait_for(works: Sequence[dist.Work]) -> None:
    """Wait until messages have been sent and received."""
    for work in works:
        work.wait()
