"""Splitting measurements: of a stack, and sharded ones.

DeepInverse's splitting model draws a mask, hands the model one part of the measurement and of the
operator, and keeps the mask for the loss. Here each operator of a stack has a mask of its own, from
a stream of its own, so the masks do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from deepinv.loss import SplittingLoss
from deepinv.physics import StackedLinearPhysics, StackedPhysics
from deepinv.physics.generator import BernoulliSplittingMaskGenerator

from shardinv.context import DistributedContext
from shardinv.physics import (
    DistributedStackedLinearPhysics,
    DistributedStackedPhysics,
    OwnedMeasurements,
    OwnedOperators,
)
from shardinv.physics.linear import reduction_of
from shardinv.physics.noise import stream, stream_seed
from shardinv.physics.operators import DealtOperators
from shardinv.tensor import ShardedTensor, scatter
from shardinv.training.losses.entries import as_list, held_everywhere
from shardinv.training.losses.masks import masked
from shardinv.training.losses.randomness import next_number


def split(own: Any, mask: torch.Tensor, y: Any, physics: Any = None) -> Any:
    """Split by a class's own ``split``, the mask cut as the measurement is."""
    if isinstance(y, ShardedTensor) and not isinstance(mask, ShardedTensor):
        mask = scatter(mask, y.sharding)
    return own(mask, y, physics)


def split_list(
    ctx: DistributedContext, model: SplittingLoss.SplittingModel, y: Any, physics: Any
) -> tuple[Any, StackedPhysics, dict[int, torch.Tensor]]:
    """One part of a stack's measurements and operators, and the masks that made it.

    Returns
    -------
    TensorList or OwnedMeasurements
        The measurements, a list of the kind given.
    StackedPhysics
        The stack, its operators as they were dealt.
    dict of int to torch.Tensor
        The masks of this rank's operators.
    """
    rng = getattr(model.mask_generator, "rng", None)
    base = next_number(rng)

    def part(index: int, entry: Any, operator: Any) -> tuple[torch.Tensor, Any, Any]:
        generator = model.mask_generator
        if generator is None:
            generator = BernoulliSplittingMaskGenerator(
                img_size=(entry.shape[1], *entry.shape[-2:]),
                split_ratio=model.split_ratio,
                pixelwise=model.pixelwise,
                device=entry.device,
            )
        with stream(stream_seed(base, index), ctx.device, getattr(generator, "rng", None)):
            source = masked(operator, entry)
            drawn = generator.step(entry.size(0), input_mask=getattr(source, "mask", None))
            return drawn["mask"], *model.split(drawn["mask"], entry, source)

    here = held_everywhere(physics, y)
    if here is not None:
        parts = {index: part(index, y[index], here[index]) for index in range(len(here))}
    else:
        owned = physics.own(y)
        parts = {
            index: part(index, entry, physics.operators[index])
            for index, entry in owned.local_items()
        }
    masks = {index: mask for index, (mask, _, _) in parts.items()}
    entries = {index: entry for index, (_, entry, _) in parts.items()}
    operators = {index: operator for index, (_, _, operator) in parts.items()}
    if here is not None:
        stack = _stack(here, [operators[index] for index in range(len(here))])
        return as_list([entries[index] for index in range(len(here))]), stack, masks
    kept = owned.like(entries, key=None if owned.key is None else ("split", owned.key))
    given = kept if isinstance(y, OwnedMeasurements) else kept.gather()
    return given, _dealt_stack(physics, operators), masks


def _stack(source: StackedPhysics, operators: list[Any]) -> StackedPhysics:
    if not isinstance(source, StackedLinearPhysics):
        return StackedPhysics(operators)
    if hasattr(source, "reduction_name"):
        return StackedLinearPhysics(operators, reduction=source.reduction_name)
    return StackedLinearPhysics(operators, reduction=reduction_of(source))


def _dealt_stack(
    source: DistributedStackedPhysics, operators: Mapping[int, Any]
) -> DistributedStackedPhysics:
    dealt = DealtOperators(
        OwnedOperators(operators, source.ownership),
        isinstance(source, StackedLinearPhysics),
        source.costs,
        source._generators,
    )
    if isinstance(source, DistributedStackedLinearPhysics):
        stack: DistributedStackedPhysics = DistributedStackedLinearPhysics(
            source.ctx, dealt, source.reduction_name
        )
    else:
        stack = DistributedStackedPhysics(source.ctx, dealt)
    # Shapes are those of the stack given: the ranks need not tell each other again.
    stack.first_use = source.first_use
    return stack
