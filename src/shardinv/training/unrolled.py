"""Unrolled solvers of ``deepinv.optim``: their fidelity and priors, distributed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepinv.optim import BaseOptim, DataFidelity
from deepinv.optim.prior import Prior
from torch import nn

from shardinv.context import DistributedContext
from shardinv.exchange import broadcast_tensors
from shardinv.training.solvers import distribute_solver


def distribute_unrolled(
    model: BaseOptim,
    ctx: DistributedContext,
    distribute_fidelity: Callable[[DataFidelity], DataFidelity],
    distribute_prior: Callable[[Prior], Prior],
) -> BaseOptim:
    """Distribute the fidelity and priors of an unrolled solver, and return it.

    Step sizes and other trained parameters are used by every rank alike, so their gradients are
    the undistributed ones; rank 0's values are given to all.

    Raises
    ------
    TypeError
        If the solver was not built with ``unfold=True``.
    """
    if not getattr(model, "unfold", False):
        raise TypeError(
            f"{type(model).__name__} was built with unfold=False: distribute its data_fidelity and "
            "prior before building it, or build it with unfold=True"
        )
    if model.data_fidelity is not None:
        model.data_fidelity = nn.ModuleList(
            [distribute_fidelity(term) for term in _entries(model.data_fidelity)]
        )
    if model.prior is not None:
        model.prior = nn.ModuleList([distribute_prior(prior) for prior in _entries(model.prior)])
    model.to(ctx.device)
    with ctx.ledger.block("parameters"):
        broadcast_tensors(ctx.comm, [parameter.data for parameter in model.parameters()])
    return distribute_solver(model)


def _entries(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple, nn.ModuleList)) else [given]
