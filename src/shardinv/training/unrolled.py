"""Unrolled solvers of ``deepinv.optim``: their fidelity and priors, distributed in place.

Unfolded ones (``unfold=True``) and deep equilibrium models (``DEQ=True``). The solver's own loop,
and the fixed-point iteration in the backward pass of an equilibrium, run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from deepinv.optim import BaseOptim, DataFidelity
from deepinv.optim.prior import Prior
from torch import nn

from shardinv.context import DistributedContext
from shardinv.denoise import DistributedProcessing
from shardinv.exchange import broadcast_tensors
from shardinv.fidelity import DistributedDataFidelity
from shardinv.training.memory import checkpoint_iterations
from shardinv.training.solvers import distribute_solver


def is_unrolled(model: BaseOptim) -> bool:
    """Whether a solver has parameters that are trained: unfolded, or a deep equilibrium model."""
    return bool(getattr(model, "unfold", False) or getattr(model, "DEQ", False))


def distribute_unrolled(
    model: BaseOptim,
    ctx: DistributedContext,
    distribute_fidelity: Callable[[DataFidelity], DataFidelity],
    distribute_prior: Callable[[Prior], Prior],
    checkpoint: str = "auto",
    memory: int | None = None,
) -> BaseOptim:
    """Distribute the fidelity and priors of an unrolled solver, and return it.

    Step sizes and other trained parameters are used by every rank alike, so their gradients are
    the undistributed ones; rank 0's values are given to all. Iterations that share a fidelity or a
    prior share its block.

    Raises
    ------
    TypeError
        If the solver was built with neither ``unfold=True`` nor ``DEQ=True``.
    """
    if not is_unrolled(model):
        raise TypeError(
            f"{type(model).__name__} was built with unfold=False: distribute its data_fidelity and "
            "prior before building it, or build it with unfold=True"
        )
    if model.data_fidelity is not None:
        model.data_fidelity = _each(model.data_fidelity, distribute_fidelity)
    if model.prior is not None:
        model.prior = _each(model.prior, distribute_prior)
    model.to(ctx.device)
    with ctx.ledger.block("parameters"):
        broadcast_tensors(ctx.comm, _own_tensors(model))
    checkpoint_iterations(model, ctx, checkpoint, memory)
    return distribute_solver(model)


def _each(given: Any, distribute: Callable[[Any], Any]) -> nn.ModuleList:
    """The blocks of one entry or of a list of them, one block for each object."""
    entries = list(given) if isinstance(given, (list, tuple, nn.ModuleList)) else [given]
    blocks: dict[int, Any] = {}
    for entry in entries:
        if id(entry) not in blocks:
            blocks[id(entry)] = distribute(entry)
    return nn.ModuleList([blocks[id(entry)] for entry in entries])


def _own_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers that no block has broadcast already."""
    blocks = [
        module
        for module in model.modules()
        if isinstance(module, (DistributedProcessing, DistributedDataFidelity))
    ]
    sent = {id(tensor) for block in blocks for tensor in _state(block)}
    return [tensor for tensor in _state(model) if id(tensor) not in sent]


def _state(module: nn.Module) -> Iterable[torch.Tensor]:
    yield from module.parameters()
    # What a solver keeps between two iterations, such as a history, is not saved and not shared.
    names = {name for name, _ in module.named_buffers()} & module.state_dict().keys()
    yield from (buffer for name, buffer in module.named_buffers() if name in names)
