"""Building the operators of a stack and dealing them to the ranks by cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepinv.physics import LinearPhysics, Physics, StackedPhysics

from shardinv.context import DistributedContext
from shardinv.exchange import publish
from shardinv.geometry import deal
from shardinv.physics.measurements import OwnedList, Ownership
from shardinv.physics.noise import Generators

OperatorFactory = Callable[..., Physics]


class OwnedOperators(OwnedList[Physics]):
    """The operators of a stack, each on the rank that owns it."""

    advice = "it was dealt to that rank when the stack was distributed"

    def __init__(self, entries: Mapping[int, Physics], ownership: Ownership) -> None:
        super().__init__(entries, ownership, "operator")


@dataclass(frozen=True)
class DealtOperators:
    """A stack's operators after the deal.

    Parameters
    ----------
    operators
        This rank's, with their indices.
    linear
        Whether all operators, on all ranks, are linear.
    costs
        The cost of each, by which they were dealt.
    generators
        Who draws noise from a random generator of its own.
    """

    operators: OwnedOperators
    linear: bool
    costs: tuple[float, ...]
    generators: Generators


def deal_operators(
    source: StackedPhysics | Sequence[Physics] | OperatorFactory,
    ctx: DistributedContext,
    *,
    num_operators: int | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    costs: Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
) -> DealtOperators:
    """Deal operators to the ranks and put this rank's on its device.

    Parameters
    ----------
    source
        A stack, a list of operators, or a factory ``factory(index, device, factory_kwargs)`` that
        is called on the owner's rank only.
    ctx
        The ranks.
    num_operators
        How many a factory makes; with a stack or list, a check.
    factory_kwargs
        Handed to the factory as its third argument.
    costs
        Cost of each operator in any unit; by default the number of values in its parameters and
        buffers (kernels, masks, angles), or all alike for a factory.
    dtype
        Type to convert real floating parameters and buffers to; None leaves them.

    Raises
    ------
    ValueError
        If the number of operators is missing, wrong, or not the number of costs.
    TypeError
        If an entry is not a ``deepinv.physics.Physics``.
    """
    given: list[Physics] | None = None
    if isinstance(source, StackedPhysics):
        given = list(source.physics_list)
    elif isinstance(source, Sequence):
        given = []
        for operator in source:
            given.extend(
                operator.physics_list if isinstance(operator, StackedPhysics) else [operator]
            )
    if given is not None:
        for index, operator in enumerate(given):
            if not isinstance(operator, Physics):
                raise TypeError(
                    f"operator {index} is a {type(operator).__name__}, "
                    "a deepinv.physics.Physics is needed"
                )
        if num_operators not in (None, len(given)):
            raise ValueError(f"num_operators={num_operators}, but {len(given)} operators are given")
    elif num_operators is None:
        raise ValueError("a factory of operators needs num_operators=")
    count = len(given) if given is not None else int(num_operators or 0)
    if count < 1:
        raise ValueError("at least one operator is needed, got none")
    if costs is None:
        costs = [1.0] * count if given is None else [_cost(operator) for operator in given]
    if len(costs) != count:
        raise ValueError(f"{len(costs)} costs are given for {count} operators")
    ownership = Ownership(deal(costs, ctx.world_size), ctx.rank)
    if given is not None:
        mine = {index: given[index] for index in ownership.mine}
    else:
        assert callable(source)
        mine = {}
        for index in ownership.mine:
            mine[index] = source(index, ctx.device, factory_kwargs)
            if not isinstance(mine[index], Physics):
                raise TypeError(
                    f"the factory made a {type(mine[index]).__name__} for operator {index}, "
                    "a deepinv.physics.Physics is needed"
                )
    for operator in mine.values():
        operator.to(ctx.device)
        if dtype is not None:
            # Not .to(dtype): that would drop the imaginary part of complex buffers.
            operator._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)
    everywhere = given if given is not None else list(mine.values())
    told = publish(
        ctx.comm,
        "how many operators there are and whether they are linear",
        (count, all(isinstance(operator, LinearPhysics) for operator in everywhere)),
    )
    if len({n for n, _ in told}) > 1:
        raise ValueError(f"ranks have different numbers of operators: {[n for n, _ in told]}")
    return DealtOperators(
        OwnedOperators(mine, ownership),
        all(linear for _, linear in told),
        tuple(float(cost) for cost in costs),
        _generators(given, count),
    )


def _cost(operator: Physics) -> float:
    values = sum(p.numel() for p in operator.parameters())
    return float(1 + values + sum(b.numel() for b in operator.buffers()))


def _generators(given: Sequence[Physics] | None, count: int) -> Generators:
    """The random generators of all operators.

    With a factory, whether two operators of different ranks were given one generator can't be seen,
    so none is taken to be an operator's own.
    """
    if given is None:
        return Generators([None] * count)
    return Generators([getattr(operator.noise_model, "rng", None) for operator in given])
