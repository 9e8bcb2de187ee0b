"""From operators to the block that runs them: by operator, by space, or as the image lies."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from deepinv.physics import Physics, StackedLinearPhysics, StackedPhysics

from shardinv.context import DistributedContext
from shardinv.context.images import Mesh
from shardinv.physics.choice import DistributedStackByLayout
from shardinv.physics.linear import DistributedStackedLinearPhysics, reduction_of
from shardinv.physics.noise import Generators, seeds_of
from shardinv.physics.operators import deal_operators
from shardinv.physics.space import (
    DistributedLocalPhysics,
    DistributedLocalStack,
    NotLocalError,
    local_physics,
)
from shardinv.physics.space.registry import registration_of
from shardinv.physics.stacked import DistributedStackedPhysics

STRATEGIES = ("space", "operator")

Distributed = DistributedStackedPhysics | DistributedLocalStack | DistributedLocalPhysics


def distribute_physics(
    source: Any,
    ctx: DistributedContext,
    *,
    linear: bool,
    strategy: str | None = None,
    mesh: Mesh = None,
    align: int | Sequence[int] = 1,
    num_operators: int | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    reduction: str | None = None,
    costs: Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
) -> Distributed:
    """Distribute operators. The options are those of :func:`shardinv.distribute`.

    Parameters
    ----------
    linear
        Whether the caller counts on linear operators.

    Raises
    ------
    ValueError
        If an option makes no sense for the operators; in particular a single operator that needs
        the whole image, or one that was to run by space.
    """
    if isinstance(source, Distributed):
        return source
    if strategy not in (*STRATEGIES, None):
        raise ValueError(f"strategy must be 'space', 'operator' or None, got {strategy!r}")
    if isinstance(source, Physics) and not isinstance(source, StackedPhysics):
        return _distribute_one(source, ctx, strategy, mesh, align, dtype)
    if strategy == "space":
        operators = _all_operators(source, ctx, num_operators, factory_kwargs)
        _convert(operators, ctx, dtype)
        stack = _stack(operators, _reduction(source, reduction))
        generators = None
        if not isinstance(source, (StackedPhysics, Sequence)):  # a factory: as by operator
            generators = Generators.seeded(seeds_of(enumerate(operators)), len(operators))
        return _settings(
            local_physics(stack, ctx, mesh=mesh, align=align, generators=generators), source
        )
    if mesh is not None or align != 1:
        raise TypeError(
            "mesh= and align= say how images are cut for strategy='space'; with another strategy "
            "they lie as they are given: ctx.shard(x, mesh=..., align=...)"
        )
    dealt = deal_operators(
        source,
        ctx,
        num_operators=num_operators,
        factory_kwargs=factory_kwargs,
        costs=costs,
        dtype=dtype,
    )
    if not dealt.linear:
        if linear:
            raise ValueError("type_object='linear_physics', but not all operators are linear")
        if reduction not in (None, "sum"):
            raise ValueError(f"reduction={reduction!r} is for stacks of linear operators only")
        return _settings(DistributedStackedPhysics(ctx, dealt), source)
    reduction = _reduction(source, reduction)
    space = None
    if strategy is None and reduction in ("sum", "mean"):
        space = _by_space(source, ctx, reduction, dtype)
    if space is not None:
        return _settings(DistributedStackByLayout(ctx, dealt, space, reduction), source)
    return _settings(DistributedStackedLinearPhysics(ctx, dealt, reduction), source)


def _distribute_one(
    operator: Physics,
    ctx: DistributedContext,
    strategy: str | None,
    mesh: Mesh,
    align: int | Sequence[int],
    dtype: torch.dtype | None,
) -> DistributedLocalPhysics | DistributedLocalStack:
    if strategy == "operator":
        raise ValueError(
            f"a single {type(operator).__name__} cannot be dealt to ranks: give a list of "
            "operators or a StackedPhysics, each a part of the acquisition (angles, coils, frames)"
        )
    _convert([operator], ctx, dtype)
    try:
        return local_physics(operator, ctx, mesh=mesh, align=align)
    except NotLocalError as error:
        raise NotLocalError(
            f"a single {type(operator).__name__} cannot be dealt to ranks: give a list of "
            "operators or a StackedPhysics, each a part of the acquisition (angles, coils, "
            f"frames). Nor can it run by space: {error}"
        ) from error


def _by_space(
    source: Any, ctx: DistributedContext, reduction: str, dtype: torch.dtype | None
) -> DistributedLocalStack | None:
    """The stack by space, where all operators are given and depend on a neighbourhood only."""
    if not isinstance(source, (StackedPhysics, Sequence)):
        return None
    operators = _all_operators(source, ctx, None, None)
    try:
        for operator in operators:
            registration_of(operator)
        # All ranks need all of them here, also those that were dealt to others.
        _convert(operators, ctx, dtype)
        found = local_physics(_stack(operators, reduction), ctx)
    except NotLocalError:
        return None
    assert isinstance(found, DistributedLocalStack)
    return found


def _stack(operators: Sequence[Physics], reduction: str | None) -> StackedLinearPhysics:
    with warnings.catch_warnings():
        # DeepInverse warns of any reduction but a sum, and has done so for the stack given.
        warnings.simplefilter("ignore", DeprecationWarning)
        return StackedLinearPhysics(list(operators), reduction=reduction or "none")


def _all_operators(
    source: Any,
    ctx: DistributedContext,
    num_operators: int | None,
    factory_kwargs: Mapping[str, Any] | None,
) -> list[Physics]:
    if isinstance(source, StackedPhysics):
        return list(source.physics_list)
    if isinstance(source, Sequence):
        operators: list[Physics] = []
        for operator in source:
            operators.extend(
                operator.physics_list if isinstance(operator, StackedPhysics) else [operator]
            )
        return operators
    if num_operators is None:
        raise ValueError("a factory of operators needs num_operators=")
    return [source(index, ctx.device, factory_kwargs) for index in range(num_operators)]


def _convert(
    operators: Sequence[Physics], ctx: DistributedContext, dtype: torch.dtype | None
) -> None:
    for operator in operators:
        operator.to(ctx.device)
        if dtype is not None:
            # Not .to(dtype): that would drop the imaginary part of complex buffers.
            operator._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)


def _reduction(source: Any, asked: str | None) -> str | None:
    if asked is not None:
        return None if asked == "none" else asked
    return reduction_of(source) if isinstance(source, StackedLinearPhysics) else "sum"


def _settings(result: Any, source: Any) -> Any:
    """The solver's settings of the stack given."""
    if isinstance(source, StackedPhysics):
        result.solver, result.max_iter, result.tol = source.solver, source.max_iter, source.tol
    return result
