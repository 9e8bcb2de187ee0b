"""Parameters handed to ``distribute`` by themselves, for ranks that work on different data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from shardinv.context import DistributedContext
from shardinv.exchange import all_reduce, broadcast_tensors


def average_gradients(
    parameters: Sequence[nn.Parameter], ctx: DistributedContext
) -> list[RemovableHandle]:
    """Give all ranks rank 0's values, and average the gradients over the ranks from then on.

    For a parameter that each rank uses on data of its own. Parameters inside a distributed block
    need it not: their gradient is the undistributed one on every rank already, and its average is
    the same.

    Parameters
    ----------
    parameters
        The same ones, in the same order, on every rank.
    ctx
        The ranks.

    Returns
    -------
    list of RemovableHandle
        Ends the averaging: ``handle.remove()`` for each.

    Raises
    ------
    TypeError
        If one is no ``torch.nn.Parameter``.
    """
    for parameter in parameters:
        if not isinstance(parameter, nn.Parameter):
            raise TypeError(f"a torch.nn.Parameter is needed, got a {type(parameter).__name__}")
    with ctx.ledger.block("parameters"):
        broadcast_tensors(ctx.comm, [parameter.data for parameter in parameters])
    if ctx.comm.alone:
        return []

    def average(gradient: torch.Tensor) -> torch.Tensor:
        with ctx.ledger.block("parameters (backward)"):
            return all_reduce(ctx.comm, gradient.clone(), "mean")

    return [parameter.register_hook(average) for parameter in parameters]
