"""The fidelity of operators by space: every rank evaluates all terms, each on its box.

Predictions and residuals are sharded as the measurements are; one halo goes out to all operators
and one comes back. The terms themselves are DeepInverse's, on sharded tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from deepinv.optim.data_fidelity import L2, DataFidelity
from deepinv.utils.tensorlist import TensorList

from shardinv.fidelity.terms import Terms
from shardinv.physics import DistributedLocalPhysics, DistributedLocalStack
from shardinv.tensor import ShardedTensor, gather, realign, scatter

Local = DistributedLocalStack | DistributedLocalPhysics


def operators_of(physics: Local) -> list[DistributedLocalPhysics]:
    """The operators of a stack; of a single one, itself."""
    return [physics] if isinstance(physics, DistributedLocalPhysics) else physics.physics_list


def predictions(physics: Local, x: torch.Tensor) -> list[ShardedTensor]:
    """The operators' outputs, sharded, whether the image is or not."""
    found: Any = physics.A(x, gather=False)
    return [found] if isinstance(physics, DistributedLocalPhysics) else list(found.x)


def measurements(physics: Local, x: torch.Tensor, y: Any) -> list[ShardedTensor]:
    """The measurements, one for each operator, that lie as the predictions for ``x`` do."""
    entries = [y] if isinstance(physics, DistributedLocalPhysics) else [y[i] for i in range(len(y))]
    outputs = physics.outputs(x)
    if len(entries) != len(outputs):
        raise ValueError(
            f"expected {len(outputs)} measurements, one for each operator, got {len(entries)}"
        )
    return [
        realign(entry, output) if isinstance(entry, ShardedTensor) else scatter(entry, output)
        for entry, output in zip(entries, outputs, strict=True)
    ]


def together(physics: Local, entries: Sequence[torch.Tensor]) -> Any:
    """Measurements as the operator, or the stack, takes them."""
    if isinstance(physics, DistributedLocalPhysics):
        return entries[0]
    return TensorList(list(entries))


def adjoint(physics: Local, x: torch.Tensor, entries: Sequence[torch.Tensor]) -> torch.Tensor:
    """The adjoint of sharded measurements, lying as ``x`` does."""
    image = physics.A_vjp(x, together(physics, entries))
    return image if isinstance(x, ShardedTensor) else gather(image)


def value(
    terms: Terms, x: torch.Tensor, y: Any, physics: Local, args: Any, kwargs: Any
) -> torch.Tensor:
    r"""The sum of the terms, :math:`\sum_i d_i(A_i x, y_i)`, of shape ``(B,)``."""
    operators = operators_of(physics)
    entries = measurements(physics, x, y)
    plain = all(type(terms[i]).fn is DataFidelity.fn for i in range(len(operators)))
    if plain:
        predicted = predictions(physics, x)
        parts = [terms[i].d(u, entries[i], *args, **kwargs) for i, u in enumerate(predicted)]
    else:
        at = _sharded(physics, x)
        parts = [terms[i](at, entries[i], op, *args, **kwargs) for i, op in enumerate(operators)]
    return torch.stack(parts).sum(0)


def gradient(
    terms: Terms, x: torch.Tensor, y: Any, physics: Local, args: Any, kwargs: Any
) -> torch.Tensor:
    r"""The gradient, :math:`\sum_i A_i^\top \nabla d_i(A_i x, y_i)`, lying as ``x``."""
    operators = operators_of(physics)
    entries = measurements(physics, x, y)
    plain = all(type(terms[i]).grad in (DataFidelity.grad, L2.grad) for i in range(len(operators)))
    if plain:
        # One operator's residual is in memory at a time.
        return physics.normal(x, lambda i, u: terms[i].d.grad(u, entries[i], *args, **kwargs))
    at = _sharded(physics, x)
    total: Any = terms[0].grad(at, entries[0], operators[0], *args, **kwargs)
    for i, op in enumerate(operators[1:], start=1):
        total = total + terms[i].grad(at, entries[i], op, *args, **kwargs)
    return total if isinstance(x, ShardedTensor) else gather(total)


def _sharded(physics: Local, x: torch.Tensor) -> ShardedTensor:
    """The image as its measurements lie, for terms that apply the operator themselves."""
    return x if isinstance(x, ShardedTensor) else scatter(x, physics.sharding(x.shape[2:]))
