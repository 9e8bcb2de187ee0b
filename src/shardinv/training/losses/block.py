"""A loss over the ranks: rank 0's draws, a stack's measurements, sharded images.

A loss becomes an instance of a subclass of its own class, whose forward prepares the arguments and
calls the class's own. Models that a loss adapts (splitting, re-corruption) likewise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from deepinv.loss import (
    EquivariantSplittingLoss,
    Loss,
    MCLoss,
    Neighbor2Neighbor,
    R2RLoss,
    SplittingLoss,
    StackedPhysicsLoss,
)
from deepinv.loss.metric import Metric
from deepinv.loss.r2r import R2RModel
from deepinv.physics import GaussianNoise, StackedPhysics
from deepinv.transform import Transform
from torch import nn

from shardinv.context import DistributedContext
from shardinv.physics import OwnedMeasurements
from shardinv.tensor import ShardedTensor, gather, scatter
from shardinv.training.losses.entries import (
    BY_ENTRY,
    as_list,
    held_everywhere,
    is_list,
    sum_of_entries,
)
from shardinv.training.losses.masks import masked
from shardinv.training.losses.randomness import DrawsAsRankZero, common_random
from shardinv.training.losses.single import LentOperator, entry_on_all, replace_entry
from shardinv.training.losses.splitting import split, split_list
from shardinv.training.losses.transforms import whole, whole_transform

Kind = TypeVar("Kind", bound=nn.Module)

_SPLITTING = (SplittingLoss, EquivariantSplittingLoss)
"""Losses that look for the operator's own mask, to split it."""

_ON_WHOLE = (Neighbor2Neighbor, EquivariantSplittingLoss)
"""Losses that cut the measurement by functions of their own, which know no sharded ones."""

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
    for inner in _inner_losses(loss):
        distribute_loss(inner, ctx)
    for name, value in [*vars(loss).items(), *loss._modules.items()]:
        if isinstance(value, Transform) or (name == "T" and callable(value)):
            setattr(loss, name, whole_transform(value, ctx))
    mixin = _SplittingOverRanks if isinstance(loss, SplittingLoss) else _OverRanks
    return _become(loss, mixin, ctx)


def _inner_losses(loss: Loss) -> Iterator[Loss]:
    """The losses that a loss is made of: what it schedules, has for each operator, or adds up."""
    held = [*getattr(loss, "losses", ()), *loss.children()]
    while held:
        each = held.pop(0)
        if isinstance(each, (list, tuple)):
            held += each
        elif isinstance(each, Loss):
            yield each


def _become(module: Any, mixin: type, ctx: DistributedContext) -> Any:
    """Make a module an instance of a subclass of its class, with the signatures of the class."""
    kind = type(module)
    described: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    for name in ("forward", "adapt_model"):
        if hasattr(mixin, name) and hasattr(kind, name):
            described[name] = _signed(getattr(mixin, name), getattr(kind, name))
    module.__class__ = type(kind.__name__, (mixin, kind), described)
    object.__setattr__(module, "ctx", ctx)
    return module


def _signed(function: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(like)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


class _OverRanks(DrawsAsRankZero):
    """A loss whose forward prepares the arguments for its class's own."""

    @property
    def undistributed(self) -> Callable[..., torch.Tensor]:
        """The class's own forward: what one rank may evaluate without the others."""
        return super().forward  # type: ignore[misc]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = self.undistributed
        names = [
            name
            for name, parameter in inspect.signature(own).parameters.items()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        physics = given.get("physics")
        # A distributed block sees to its own draws, and so does not count here.
        with common_random(self.ctx, self, physics):
            if len(given) < len(args) + len(kwargs):  # more than there are names for, or twice
                return own(*args, **kwargs)
            y = given.get("y")
            if is_list(y) and isinstance(physics, StackedPhysics):
                return self._of_stack(own, given)
            if isinstance(self, _ON_WHOLE):
                given = {name: whole(value) for name, value in given.items()}
            if isinstance(self, _SPLITTING):
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
            raise TypeError(_no_lists(type(self).__name__, count))
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
        mixin: type = _AdaptedModel
        if isinstance(adapted, SplittingLoss.SplittingModel):
            mixin = _SplittingModel
        elif isinstance(adapted, R2RModel):
            mixin = _RecorruptedModel
        over_ranks = _become(adapted, mixin, self.ctx)
        over_ranks.adapted_by = type(self)
        return over_ranks


class _SplittingOverRanks(_OverRanks):
    """A splitting loss, which cuts sharded measurements too."""

    def split(self, mask: torch.Tensor, y: Any, physics: Any = None) -> Any:
        """As the class's own."""
        return split(super().split, mask, y, physics)  # type: ignore[misc]


def _no_lists(name: str, count: int) -> str:
    return (
        f"{name} compares single measurements and is not defined for the "
        f"list of {count} of a stack: use MCLoss, a SURE loss or SplittingLoss"
    )


class _AdaptedModel(DrawsAsRankZero):
    """A model whose input a loss changes at random: as rank 0 does."""

    adapted_by: type

    def forward(self, y: Any, *args: Any, **kwargs: Any) -> Any:
        if is_list(y) and issubclass(self.adapted_by, _SINGLE_TENSORS):
            raise TypeError(_no_lists(self.adapted_by.__name__, len(y)))
        with common_random(self.ctx, self):
            return self._own(y, *args, **kwargs)

    def _own(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)  # type: ignore[misc]


class _RecorruptedModel(_AdaptedModel):
    """A re-corrupting model that takes sharded measurements."""

    curr_noise_model: Any

    def get_corruptor(self, y: torch.Tensor) -> Callable[[], torch.Tensor]:
        """As the class's own, of sharded measurements too."""
        own: Any = super().get_corruptor  # type: ignore[misc]
        if not isinstance(y, ShardedTensor) or isinstance(self.curr_noise_model, GaussianNoise):
            return own(y)
        # Of a shard alone, torch draws no binomial or beta numbers that are those of the whole.
        drawn = own(gather(y))
        return lambda: scatter(drawn(), y.sharding)


class _SplittingModel(_AdaptedModel):
    """A splitting model that takes a stack's measurements and sharded ones."""

    def _own(self, y: Any, physics: Any, update_parameters: bool = False) -> Any:
        if is_list(y):
            return self._of_stack(y, physics, update_parameters)
        given = (masked(physics, y), update_parameters)
        if isinstance(y, ShardedTensor) and self._splits_output():
            # The average by masks writes where they are not zero, which a shard's rules don't.
            return scatter(super()._own(gather(y), *given), y.sharding)
        return super()._own(y, *given)

    def _splits_output(self) -> bool:
        model: Any = self
        return not model.training and model.eval_split_input and model.eval_split_output

    def _of_stack(self, y: Any, physics: Any, update_parameters: bool) -> Any:
        model: Any = self
        if not model.training and not model.eval_split_input:
            count = 0
        elif self._splits_output():
            raise NotImplementedError(
                "eval_split_output=True averages by the masks of an image, which the "
                f"{len(y)} measurements of a stack do not have: use eval_split_output=False"
            )
        else:
            count = 1 if model.training else model.eval_n_samples
        with torch.set_grad_enabled(model.training):
            if count == 0:
                return model.model(y, physics)
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
    alone = {
        index: (each, each.undistributed)
        for index, each in enumerate(loss.losses)
        if _is_alone(each)
    }
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
    return isinstance(loss, MCLoss) and isinstance(loss.metric, _TENSOR_METRICS)


def _model_of_entry(model: Any, y: Any, physics: Any, index: int) -> Callable[..., Any]:
    """The model as a function of one operator's measurement."""

    def run(entry: torch.Tensor, _: Any, **kwargs: Any) -> Any:
        if isinstance(y, OwnedMeasurements):
            return model(replace_entry(physics, y, index, entry), physics, **kwargs)
        replaced = y.clone()
        replaced[index] = entry
        return model(replaced, physics, **kwargs)

    return run
