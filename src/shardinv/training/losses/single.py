"""One operator of a stack on every rank, though one rank alone has it.

For losses that are made for a single operator and call the model themselves: all ranks evaluate
them together, the owner applies the operator and its result goes to all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from deepinv.physics import Physics
from deepinv.utils.tensorlist import TensorList

from shardinv.exchange import TensorSpec, fan_out, gather_list
from shardinv.physics import DistributedStackedPhysics, OwnedMeasurements
from shardinv.physics.measurements import EntrySpec, Measurement, entry_tensors


class LentOperator(Physics):
    """An operator of a stack, as every rank may call it. Every rank must.

    Parameters
    ----------
    stack
        The stack by operator.
    index
        Which operator.

    Raises
    ------
    NotImplementedError
        By ``noise`` and ``sensor``: its noise model is the owner's.
    """

    def __init__(self, stack: DistributedStackedPhysics, index: int) -> None:
        super().__init__()
        # Kept out of the table of submodules: it is not this module's.
        object.__setattr__(self, "stack", stack)
        self.index = index

    stack: DistributedStackedPhysics

    def A(self, x: torch.Tensor, **kwargs: Any) -> Any:
        """Apply the operator to an image that all ranks have, or that is sharded."""
        image, token = self.stack.enter(x)
        return self._ask("A", lambda op: op.A(image, **kwargs), token, TensorSpec.of(x))

    def A_adjoint(self, y: torch.Tensor, **kwargs: Any) -> Any:
        """Apply the adjoint to a measurement that all ranks have."""
        return self._of_measurement("A_adjoint", y, kwargs)

    def A_dagger(self, y: torch.Tensor, **kwargs: Any) -> Any:
        """Apply the pseudo-inverse to a measurement that all ranks have."""
        return self._of_measurement("A_dagger", y, kwargs)

    def noise(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Not to be had."""
        raise NotImplementedError(
            f"operator {self.index} has its noise and sensor model on the rank that owns it: draw "
            "the noise of the whole stack, physics(x)"
        )

    sensor = noise

    def _of_measurement(self, name: str, y: torch.Tensor, kwargs: dict[str, Any]) -> Any:
        (entry,), token = fan_out(self.stack.ctx.comm, y)
        return self._ask(
            name, lambda op: getattr(op, name)(entry, **kwargs), token, TensorSpec.of(y)
        )

    def _ask(
        self, name: str, function: Callable[[Any], Measurement], token: torch.Tensor, kind: Hashable
    ) -> Measurement:
        ownership = self.stack.ownership
        mine = None
        if self.index in ownership.mine:
            mine = function(self.stack.operators[self.index])
        told = self.stack.first_use.facts(
            f"what operator {self.index} makes",
            (name, self.index, kind),
            None if mine is None else EntrySpec.of(mine),
        )
        return _to_all(self.stack, mine, told[ownership.owner(self.index)], self.index, token)


def entry_on_all(stack: DistributedStackedPhysics, y: OwnedMeasurements, index: int) -> Measurement:
    """One measurement of a list that knows its owners, on every rank."""
    owner = stack.ownership.owner(index)
    held = [EntrySpec.of(entry) for _, entry in y.local_items()]
    told = y.first_use.facts("the shapes of measurements", y.key, held)
    spec = told[owner][stack.ownership.hands[owner].index(index)]
    mine = y[index] if index in stack.ownership.mine else None
    return _to_all(stack, mine, spec, index, y.token)


def replace_entry(
    stack: DistributedStackedPhysics, y: OwnedMeasurements, index: int, value: torch.Tensor
) -> OwnedMeasurements:
    """The same list with another measurement for one operator, which all ranks have."""
    (local,), token = fan_out(stack.ctx.comm, value)
    entries = dict(y.local_items())
    if index in entries:
        entries[index] = local
    replaced = y.like(entries, key=y.key)
    replaced.token = y.token + token
    return replaced


def _to_all(
    stack: DistributedStackedPhysics,
    mine: Measurement | None,
    spec: EntrySpec,
    index: int,
    token: torch.Tensor,
) -> Measurement:
    owner = stack.ownership.owner(index)
    specs = [spec.tensors if rank == owner else () for rank in range(stack.ctx.world_size)]
    tensors = [] if mine is None else list(entry_tensors(mine))
    parts = gather_list(stack.ctx.comm, tensors, specs, token)
    return TensorList(parts) if spec.nested else parts[0]
