"""A stack that runs by operator or by space, as the image lies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from shardinv.context import DistributedContext
from shardinv.physics.linear import DistributedStackedLinearPhysics
from shardinv.physics.measurements import OwnedMeasurements
from shardinv.physics.operators import DealtOperators
from shardinv.physics.space import DistributedLocalStack
from shardinv.tensor import ShardedTensor, Sharding

_BY_LAYOUT = (
    "A",
    "forward",
    "noise",
    "sensor",
    "A_adjoint",
    "A_vjp",
    "A_jvp",
    "A_adjoint_A",
    "A_A_adjoint",
    "A_dagger",
    "prox_l2",
    "compute_norm",
    "compute_sqnorm",
)


class DistributedStackByLayout(DistributedStackedLinearPhysics):
    """A stack of operators that all depend on a neighbourhood only.

    Made by :func:`shardinv.distribute`. On an image that every rank holds, each rank applies the
    operators it owns. On a sharded one, or on sharded measurements, each rank applies all operators
    to its box, and only halos are sent. Measurements that know their owner stay with the operators.

    Parameters
    ----------
    ctx
        The ranks.
    dealt
        The operators, dealt to the ranks.
    space
        The same operators by space.
    reduction
        How the adjoint combines the operators' images.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        dealt: DealtOperators,
        space: DistributedLocalStack,
        reduction: str | None = "sum",
    ) -> None:
        super().__init__(ctx, dealt, reduction)
        # Kept out of the table of submodules: its kernels are the operators' own.
        object.__setattr__(self, "space", space)

    space: DistributedLocalStack

    def by_space(self, *values: Any) -> DistributedLocalStack | None:
        """The stack by space where it is the one for images and measurements like these."""
        if any(isinstance(value, OwnedMeasurements) for value in values):
            return None
        return self.space if any(_is_sharded(value) for value in values) else None

    def update_parameters(self, **kwargs: Any) -> None:
        """Update parameters of every operator."""
        super().update_parameters(**kwargs)
        self.space.update_parameters(**kwargs)

    def set_noise_model(self, noise_model: Any, item: int = 0, **kwargs: Any) -> None:
        """Set the noise model of operator ``item``; to be called on every rank."""
        super().set_noise_model(noise_model, item, **kwargs)
        self.space.physics_list[item].set_noise_model(noise_model, **kwargs)
        self.space.generators = self._generators

    def describe(self) -> str:
        """How the work is laid out on replicated and on sharded images."""
        return f"{super().describe()}\non a sharded image, by space:\n{self.space.describe()}"


def _is_sharded(value: Any) -> bool:
    if isinstance(value, (ShardedTensor, Sharding)):
        return True
    entries = getattr(value, "x", value)
    return isinstance(entries, list) and any(isinstance(entry, ShardedTensor) for entry in entries)


def _by_layout(name: str) -> Callable[..., Any]:
    by_operator = getattr(DistributedStackedLinearPhysics, name)

    @functools.wraps(by_operator)
    def method(self: DistributedStackByLayout, *args: Any, **kwargs: Any) -> Any:
        space = self.by_space(*args, *kwargs.values())
        # Operators keep the parameters that a call gives them: so do those that did not run.
        kept = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        if space is None:
            if kept:
                self.space.update_parameters(**kept)
            return by_operator(self, *args, **kwargs)
        if kept:
            DistributedStackedLinearPhysics.update_parameters(self, **kept)
        # The solver's settings are this block's, whoever runs it.
        space.solver, space.max_iter, space.tol = self.solver, self.max_iter, self.tol
        result = getattr(space, name)(*args, **kwargs)
        self.solver, self.max_iter, self.tol = space.solver, space.max_iter, space.tol
        return result

    return method


for _name in _BY_LAYOUT:
    setattr(DistributedStackByLayout, _name, _by_layout(_name))
