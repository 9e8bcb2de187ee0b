"""The proximal operator of a fidelity that is a distance after a linear operator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shardinv.exchange import all_reduce
from shardinv.physics import DistributedStackedLinearPhysics, OwnedMeasurements
from shardinv.physics.measurements import Measurement, entry_tensors
from shardinv.physics.stacked import sharding_of


def dual_proximal(
    x: torch.Tensor,
    y: OwnedMeasurements,
    physics: DistributedStackedLinearPhysics,
    prox_distance: Callable[[int, Measurement, Measurement, torch.Tensor], Measurement],
    *,
    step: torch.Tensor,
    crit_conv: float,
    max_iter: int,
) -> torch.Tensor:
    r"""Minimise :math:`\tfrac12\|t - x\|^2 + \sum_i d_i(A_i t, y_i)` on the dual.

    Parameters
    ----------
    x
        Image ``(B, C, *spatial)``.
    y
        Measurements. They, and the dual variables, stay with their owners.
    physics
        The stack.
    prox_distance
        ``prox(index, u, y_i, step)``, the proximal operator of :math:`d_i / \mathrm{step}` at u.
    step
        At most the inverse of the stack's squared norm.
    crit_conv
        Stop when the dual variable's relative change falls below this.
    max_iter
        Most iterations; each sends one image and three numbers.

    Notes
    -----
    With :math:`t = x - A^\top u`, iterates :math:`u \leftarrow v - s\,
    \mathrm{prox}_{d/s}(v/s)` for :math:`v = u + s A t`, from u = 0: Moreau's identity applied to
    the dual proximal-gradient step (Combettes, Dung, Vu, "Dualization of signal recovery problems",
    Set-Valued and Variational Analysis 18, 2010).
    """

    def difference(a: Measurement, b: Measurement) -> Measurement:
        return a - b

    t = x
    u: OwnedMeasurements | None = None
    for iteration in range(max_iter):
        forward = physics.A(t, gather=False)
        updated = {}
        for index, image in forward.local_items():
            v = image * step if u is None else u[index] + image * step
            updated[index] = difference(v, prox_distance(index, v / step, y[index], step) * step)
        new = forward.like(updated, key=forward.key)
        squares = torch.zeros(2, dtype=torch.float64, device=x.device)
        for index, entry in new.local_items():
            change = entry if u is None else difference(entry, u[index])
            squares[0] += sum((p.detach().abs().double() ** 2).sum() for p in entry_tensors(change))
            squares[1] += sum((p.detach().abs().double() ** 2).sum() for p in entry_tensors(entry))
        u = new
        t = x - physics.A_adjoint(u, layout=sharding_of(x))
        changed, size = all_reduce(physics.ctx.comm, squares).sqrt().tolist()
        if iteration > 2 and changed <= crit_conv * (size + 1e-12):
            break
    return t
