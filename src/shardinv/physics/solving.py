"""DeepInverse's least-squares solvers, run on a block: by operator or by space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deepinv.optim.linear import least_squares

from shardinv.exchange import TensorSpec
from shardinv.tensor import sharded_factories


def remember(physics: Any, solver: str | None, max_iter: int | None, tol: float | None) -> None:
    """Keep the last options given, as DeepInverse does: solvers count on it."""
    physics.solver = solver if solver is not None else physics.solver
    physics.max_iter = max_iter if max_iter is not None else physics.max_iter
    physics.tol = tol if tol is not None else physics.tol


def solve(
    physics: Any,
    forward: Callable[..., Any],
    adjoint: Callable[..., Any],
    y: Any,
    start: torch.Tensor,
    gamma: float | torch.Tensor,
    *,
    verbose: bool,
    **kwargs: Any,
) -> torch.Tensor:
    r"""Minimise :math:`\frac\gamma2\|A x - y\|^2 + \frac12\|x - x_0\|^2` from ``start``, x0.

    Parameters
    ----------
    physics
        The block, whose solver, iterations and tolerance are taken.
    forward, adjoint
        Its operator and adjoint, on what ``y`` is.
    y
        Measurements.
    start
        Image.
    gamma
        Step.
    verbose
        Whether the solver prints; rank 0 alone does.
    **kwargs
        Handed to the solver.
    """
    if isinstance(gamma, torch.Tensor):
        # The iterates of one rank alone would need a gradient, which none of them tells.
        need = gamma.requires_grad and torch.is_grad_enabled()
        physics.first_use.same(
            "the step of a proximal operator, and whether it needs a gradient",
            (TensorSpec.of(gamma), need),
            "They must be the same on every rank",
        )
    # Some solvers make tensors of a shape alone.
    with sharded_factories():
        return least_squares(
            forward,
            adjoint,
            y,
            z=start,
            init=start,
            gamma=gamma,
            AAT=physics.A_A_adjoint,
            ATA=physics.A_adjoint_A,
            parallel_dim=[0],
            solver=physics.solver,
            max_iter=physics.max_iter,
            tol=physics.tol,
            verbose=verbose and physics.ctx.is_main,
            **kwargs,
        )
