"""The proximal operator of a fidelity that is a distance after a linear operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardinv.exchange import all_reduce
from shardinv.fidelity.options import hand_over
from shardinv.fidelity.space import Local, adjoint
from shardinv.physics import DistributedStackedLinearPhysics, OwnedMeasurements
from shardinv.physics.measurements import Measurement, entry_tensors
from shardinv.physics.stacked import sharding_of


def dual_proximal(
    x: torch.Tensor,
    y: OwnedMeasurements | Sequence[Measurement],
    physics: DistributedStackedLinearPhysics | Local,
    prox_distance: Callable[[Any, Any, torch.Tensor, Any], Any],
    *,
    step: torch.Tensor,
    weight: Any,
    crit_conv: float,
    max_iter: int,
) -> torch.Tensor:
    r"""Minimise :math:`\tfrac12\|t - x\|^2 + \sum_i d_i(A_i t, y_i)` on the dual.

    Parameters
    ----------
    x
        Image ``(B, C, *spatial)``.
    y
        Measurements. They, and the dual variables, stay with their owners, or in their boxes.
    physics
        The operators.
    prox_distance
        ``prox(u, y_i, step, weight)``, the proximal operator of :math:`d_i / \mathrm{step}` at u.
    step
        At most the inverse of the stack's squared norm.
    weight
        A further parameter of the distance.
    crit_conv
        Stop when the dual variable's relative change falls below this.
    max_iter
        Most iterations; each sends one image, or two halos, and a few numbers.

    Notes
    -----
    With :math:`t = x - A^\top u`, iterates :math:`u \leftarrow v - s\,
    \mathrm{prox}_{d/s}(v/s)` for :math:`v = u + s A t`, from u = 0: Moreau's identity applied to
    the dual proximal-gradient step (Combettes, Dung, Vu, "Dualization of signal recovery problems",
    Set-Valued and Variational Analysis 18, 2010).
    """
    t = x
    u: dict[int, Any] = {}
    token = torch.zeros((), device=x.device)
    if isinstance(y, OwnedMeasurements):
        # Every rank uses them for its own measurements.
        (step, weight), _, token = hand_over(y.comm, y.first_use, (step, weight), {})
        token = token + y.token
    tied = token
    for iteration in range(max_iter):
        forward = physics.A(t, gather=False)
        if isinstance(forward, OwnedMeasurements):
            predicted = dict(forward.local_items())
        else:
            predicted = dict(enumerate([forward] if isinstance(forward, torch.Tensor) else forward))
        new, changes = {}, {}
        for index, image in predicted.items():
            v = image * step if not u else u[index] + image * step
            new[index] = v - prox_distance(v / step, y[index], step, weight) * step
            changes[index] = new[index] - u[index] if u else new[index]
        squares = torch.stack([_squared_norm(changes, x), _squared_norm(new, x)])
        u = new
        if isinstance(forward, OwnedMeasurements):
            # Norms of sharded entries are over all ranks already.
            squares = all_reduce(physics.ctx.comm, squares)
            dual: Any = forward.like(u, key=forward.key)
            dual.token = tied = tied + forward.token
            t = x - physics.A_adjoint(dual, layout=sharding_of(x))
        else:
            t = x - adjoint(physics, x, list(u.values()))
        changed, size = squares.sqrt().tolist()
        if iteration > 2 and changed <= crit_conv * (size + 1e-12):
            break
    return t


def _squared_norm(entries: dict[int, Any], like: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64, device=like.device)
    for entry in entries.values():
        for tensor in entry_tensors(entry):
            total = total + (tensor.detach().abs().double() ** 2).sum()
    return total
