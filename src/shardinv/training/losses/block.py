"""A loss over the ranks: rank 0's draws, a stack's measurements, sharded images.

A loss becomes an instance of a subclass of its own class, whose forward prepares the arguments and
calls the class's own. Models that a loss adapts (splitting, re-corruption) likewise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from deepinv.loss import (
    BaseLossScheduler,
    EquivariantSplittingLoss,
    Loss,
    MCLoss,
    Neighbor2Neighbor,
    R2RLoss,
    SplittingLoss,
    StackedPhysicsLoss,
)
from deepinv.loss.metric import Metric
from deepinv.physics import StackedPhysics
from deepinv.transform import Transform
from torch import nn

from shardinv.blocks import TiedToRanks
from shardinv.context import DistributedContext
from shardinv.physics import OwnedMeasurements
from shardinv.training.losses.entries import (
    BY_ENTRY,
    as_list,
    held_everywhere,
    is_list,
    sum_of_entries,
)
from shardinv.training.losses.randomness import common_random
from shardinv.training.losses.single import LentOperator, entry_on_all, replace_entry
from shardinv.training.losses.splitting import masked, split, split_list
from shardinv.training.losses.transforms import whole_transform

Kind = TypeVar("Kind", bound=nn.Module)

_SINGLE_TENSORS = (R2RLoss, Neighbor2Neighbor, EquivariantSplittingLoss)
"""Losses that have no meaning for a list of measurements."""

_TENSOR_METRICS = (nn.modules.loss._Loss, Metric)
"""Metrics that compare tensors; others may know lists."""


def distribute_loss(loss: Kind, ctx: DistributedContext) -> Kind:
    """Let a loss work over the ranks: the undistributed value and gradient on every rank.

    In place; the loss becomes an instance of a subclass of its own class. Distributing it again
    changes nothing, and what is no ``deepinv.loss.Loss`` is returned as it is.

    * Transforms, masks, perturbations: rank 0's draws on every rank, in the undistributed order.
      Of sharded measurements they are drawn by position, the same for any number of ranks.
    * Measurement consistency, SURE and splitting take the measurements of a stack, as full lists or
      with their owners: the sum over operators, as ``StackedPhysicsLoss`` with one such loss each.
      SURE perturbs all measurements at once and calls the model once.
    * ``StackedPhysicsLoss``: as undistributed, the model called as often.
    * Equivariant imaging transforms sharded images; so do other losses with a transform.
    * ``adapt_model`` (splitting, re-corruption) gives models whose draws are rank 0's too.

    Parameters
    ----------
    loss
        A ``deepinv.loss.Loss``, or a scheduler of losses, which are distributed as well.
    ctx
        The ranks.

    Raises
    ------
    ValueError
        If the loss was distributed over other ranks.
    """
    if not isinstance(loss, Loss):
        return loss
    if isinstance(loss, _OverRanks):
        if loss.ctx is not ctx:
            raise ValueError(
                f"this {type(loss).__name__} was distributed over other ranks: {loss.ctx}"
            )
        return loss  # type: ignore[return-value]
    if isinstance(loss, BaseLossScheduler):
        for inner in loss.losses:
            for entry in inner if isinstance(inner, (list, tuple)) else [inner]:
                distribute_loss(entry, ctx)
    if callable(getattr(loss, "T", None)):
        loss.T = whole_transform(loss.T, ctx)
    for name, value in [*vars(loss).items(), *loss.named_children()]:
        if isinstance(value, Transform):
            setattr(loss, name, whole_transform(value, ctx))
    return _become(loss, _OverRanks, ("forward", "adapt_model"), ctx)


def _become(module: Any, mixin: type, methods: tuple[str, ...], ctx: DistributedContext) -> Any:
    """Make a module an instance of a subclass of its class, with the signatures of the class."""
    kind = type(module)
    described: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    for name in methods:
        if name in mixin.__dict__ and hasattr(kind, name):
            described[name] = _signed(mixin.__dict__[name], getattr(kind, name))
    module.__class__ = type(kind.__name__, (mixin, kind), described)
    object.__setattr__(module, "ctx", ctx)
    return module


def _signed(function: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(like)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


class _OverRanks(TiedToRanks):
    """A loss whose forward prepares the arguments for its class's own."""

    ctx: DistributedContext

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own: Any = super().forward  # type: ignore[misc]
        bound = inspect.signature(own).bind(*args, **kwargs)
        given = dict(bound.arguments)
        positional = given.pop("args", ())
        given |= given.pop("kwargs", {})
        physics = given.get("physics")
        # A distributed block sees to its own draws, and so does not count here.
        with common_random(self.ctx, self, physics):
            if positional:
                return own(*args, **kwargs)
            y = given.get("y")
            if is_list(y) and isinstance(physics, StackedPhysics):
                return self._of_stack(own, given)
            if isinstance(self, SplittingLoss) and isinstance(y, torch.Tensor):
                given["physics"] = masked(physics, y)
            return own(**given)

    def _of_stack(self, own: Callable[..., Any], given: dict[str, Any]) -> Any:
        x_net, y, physics = given["x_net"], given["y"], given["physics"]
        count = len(physics)
        if len(y) != count:
            raise ValueError(f"{count} operators have {len(y)} measurements")
        if isinstance(self, StackedPhysicsLoss):
            return _stacked(self, self.ctx, own, given)
        if isinstance(self, _SINGLE_TENSORS):
            raise TypeError(
                f"{type(self).__name__} compares single measurements and is not defined for the "
                f"list of {count} of a stack: use MCLoss, a SURE loss or SplittingLoss"
            )
        by_entry = isinstance(self, BY_ENTRY)
        metric = getattr(self, "metric", None)
        if by_entry and isinstance(self, MCLoss) and not isinstance(metric, _TENSOR_METRICS):
            by_entry = False  # a metric that knows lists, as undistributed
        if not by_entry:
            if "y" in inspect.signature(own).parameters and isinstance(y, OwnedMeasurements):
                given["y"] = y.gather()
            return own(**given)
        if getattr(self, "unsure", False):
            raise NotImplementedError(
                f"{type(self).__name__}(unsure=True) learns one noise level, which a list of "
                f"{count} measurements does not have: use StackedPhysicsLoss with a loss each"
            )
        masks = given["model"].get_masks() if isinstance(self, SplittingLoss) else ()
        losses = dict.fromkeys(range(count), (self, own))
        return sum_of_entries(self.ctx, losses, x_net, y, physics, given.get("model"), masks)

    def adapt_model(self, model: nn.Module, **kwargs: Any) -> Any:
        adapted = super().adapt_model(model, **kwargs)  # type: ignore[misc]
        if adapted is model or isinstance(adapted, _AdaptedModel):
            return adapted
        splits = isinstance(adapted, SplittingLoss.SplittingModel)
        return _become(
            adapted, _SplittingModel if splits else _AdaptedModel, ("forward",), self.ctx
        )

    if True:

        def split(self, mask: torch.Tensor, y: Any, physics: Any = None) -> Any:
            """As the class's own, of sharded measurements too."""
            return split(super().split, mask, y, physics)  # type: ignore[misc]


class _AdaptedModel(TiedToRanks):
    """A model whose input a loss changes at random: as rank 0 does."""

    ctx: DistributedContext

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own: Any = super().forward  # type: ignore[misc]
        with common_random(self.ctx, self):
            return own(*args, **kwargs)


class _SplittingModel(_AdaptedModel):
    """A splitting model that takes a stack's measurements and sharded ones."""

    def forward(self, y: Any, physics: Any, update_parameters: bool = False) -> Any:
        model: Any = self
        if not is_list(y):
            return super().forward(masked_y := y, masked(physics, masked_y), update_parameters)
        with common_random(self.ctx, self), torch.set_grad_enabled(model.training):
            if not model.training and not model.eval_split_input:
                return model.model(y, physics)
            if not model.training and model.eval_split_output:
                raise NotImplementedError(
                    "eval_split_output=True averages by the masks of an image, which the "
                    f"{len(y)} measurements of a stack do not have: use eval_split_output=False"
                )
            count = 1 if model.training else model.eval_n_samples
            masks, total = [], 0.0
            for _ in range(count):
                part, operators, drawn = split_list(self.ctx, model, y, physics)
                total = total + model.model(part, operators) / count
                masks.append(drawn)
            if update_parameters:
                model.masks = masks
            return total

    def split(self, mask: torch.Tensor, y: Any, physics: Any = None) -> Any:
        """As the class's own, of sharded measurements too."""
        return split(super().split, mask, y, physics)  # type: ignore[misc]


def _stacked(
    loss: StackedPhysicsLoss,
    ctx: DistributedContext,
    own: Callable[..., Any],
    given: dict[str, Any],
) -> torch.Tensor:
    """A loss for each operator, as DeepInverse sums them; by operator, all ranks evaluate each."""
    x_net, y, physics = given["x_net"], given["y"], given["physics"]
    here = held_everywhere(physics, x_net, y)
    if not isinstance(y, OwnedMeasurements):
        y = as_list(list(y)) if isinstance(y, (list, tuple)) else y
    if here is not None:
        return own(**{**given, "y": y, "physics": here})
    # What calls no model needs no rank but the owner.
    alone = {i: (each, each.forward) for i, each in enumerate(loss.losses) if _is_alone(each)}
    total: Any = 0.0
    if alone:
        total = sum_of_entries(ctx, alone, x_net, y, physics, None)
    others = {key: value for key, value in given.items() if key not in ("y", "physics", "model")}
    for index, each in enumerate(loss.losses):
        if index in alone:
            continue
        entry = entry_on_all(physics, y, index) if isinstance(y, OwnedMeasurements) else y[index]
        total = (
            total
            + each(
                y=entry,
                physics=LentOperator(physics, index),
                model=_model_of_entry(given["model"], y, physics, index),
                **others,
            ).mean()
        )
    return total


def _is_alone(loss: Loss) -> bool:
    return type(loss) is MCLoss and isinstance(loss.metric, _TENSOR_METRICS)


def _model_of_entry(model: Any, y: Any, physics: Any, index: int) -> Callable[..., Any]:
    """The model as a function of one operator's measurement."""

    def run(entry: torch.Tensor, _: Any, **kwargs: Any) -> Any:
        if isinstance(y, OwnedMeasurements):
            return model(replace_entry(physics, y, index, entry), physics, **kwargs)
        replaced = y.clone()
        replaced[index] = entry
        return model(replaced, physics, **kwargs)

    return run
