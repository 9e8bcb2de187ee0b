r"""A loss made for one operator, on the measurements of a stack.

It is the sum over the operators of the loss's mean over the batch, as ``StackedPhysicsLoss`` with
one such loss for each has it. Each rank evaluates the operators that it owns, by the loss's own
code; one scalar is summed.

SURE calls the model on perturbed measurements. Here all measurements are perturbed at once,
:math:`y + τ(b_1, …, b_n)`, and the model is called once where ``StackedPhysicsLoss`` calls it for
each operator. Both estimate the same: the divergence of operator *i* is :math:`\mathbb{E}\,
b_i^\top J_{ii} b_i`, and the other operators add :math:`b_i^\top J_{ij} b_j`, whose mean is zero
since :math:`b_i` and :math:`b_j` are independent. So it is SURE of the measurements taken together,
each weighted as in the sum. Each operator draws from a stream of its own: the draws are the same
for any number of ranks and in every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from deepinv.loss import Loss, MCLoss, SplittingLoss, SureGaussianLoss, SurePGLoss, SurePoissonLoss
from deepinv.physics import StackedPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv.context import DistributedContext
from shardinv.exchange import TensorSpec
from shardinv.physics import DistributedStackedPhysics, OwnedMeasurements
from shardinv.physics.noise import stream, stream_seed
from shardinv.training.losses.masks import masked
from shardinv.training.losses.randomness import next_number

SURE: tuple[type[Loss], ...] = (SureGaussianLoss, SurePoissonLoss, SurePGLoss)

BY_ENTRY: tuple[type[Loss], ...] = (MCLoss, SplittingLoss, *SURE)
"""Losses that are sums over the operators of a stack."""

Evaluate = Callable[..., torch.Tensor]
"""A loss's own forward."""


def is_list(y: Any) -> bool:
    """Whether measurements are those of a stack."""
    return isinstance(y, (TensorList, OwnedMeasurements, list, tuple))


def as_list(entries: Sequence[Any]) -> TensorList:
    """A ``TensorList`` of any measurements, lists included."""
    result = TensorList([])
    result.x = list(entries)
    return result


def held_everywhere(physics: Any, *values: Any) -> StackedPhysics | None:
    """The stack whose operators every rank has, by space or undistributed; None by operator."""
    if not isinstance(physics, DistributedStackedPhysics):
        return physics
    return physics.by_space(*values)


def sum_of_entries(
    ctx: DistributedContext,
    losses: Mapping[int, tuple[Loss, Evaluate]],
    x_net: torch.Tensor,
    y: Any,
    physics: Any,
    model: Any,
    masks: Sequence[Mapping[int, torch.Tensor]] = (),
) -> torch.Tensor:
    """The sum of losses over operators of a stack.

    Parameters
    ----------
    ctx
        The ranks.
    losses
        For each operator that counts, its loss and the loss's own forward; the same on every rank.
        Losses that call the model are one and the same for all operators.
    x_net
        The reconstruction, replicated or sharded.
    y
        The stack's measurements: a full list, or one that knows its owners.
    physics
        The stack.
    model
        Called as ``model(y, physics)`` by losses that need it, on every rank.
    masks
        For losses that split: the masks of each draw, by operator.

    Returns
    -------
    torch.Tensor
        A number, replicated.
    """
    loss, evaluate = next(iter(losses.values()))
    calls = _calls_of_model(loss)
    # A loss that draws nothing leaves the generators where they are.
    base = next_number(getattr(loss, "rng", None)) if calls else 0

    def draws(index: int) -> AbstractContextManager[None]:
        if not calls:
            return nullcontext()
        return stream(stream_seed(base, index), ctx.device, getattr(loss, "rng", None))

    images = [x_net]
    if calls:
        perturbed = _perturbed(evaluate, y, draws, calls)
        images += [model(measurements, physics) for measurements in perturbed]

    def value(index: int, entry: Any, operator: Any, own: Sequence[Any]) -> torch.Tensor:
        stand_in = _Answers(own[1:], [drawn[index] for drawn in masks])
        with draws(index):
            if isinstance(loss, SplittingLoss):
                operator = masked(operator, entry)
            result = losses[index][1](y=entry, x_net=own[0], physics=operator, model=stand_in)
        return result.mean()

    here = held_everywhere(physics, x_net, y)
    if here is not None:
        total = sum(value(i, y[i], here[i], images) for i in losses)
        return total  # type: ignore[return-value]
    with ctx.ledger.block("loss"):
        owned = physics.own(y)
        token = owned.token
        local = []
        for image in images:
            entered, tied = physics.enter(image)
            local.append(entered)
            token = token + tied
        parts = (
            value(index, entry, physics.operators[index], local)
            for index, entry in owned.local_items()
            if index in losses
        )
        names = tuple(type(each).__name__ for each, _ in losses.values())
        key = None
        if owned.key is not None:
            key = ("loss", names, tuple(losses), owned.key, TensorSpec.of(x_net))
        return physics.sum_parts(parts, token, True, key)


def _calls_of_model(loss: Loss) -> int:
    """How often a loss calls the model: known on ranks that have none of its operators, too."""
    if isinstance(loss, SurePGLoss):
        return 3 if loss.second_derivative else 1
    return int(isinstance(loss, SURE))


def _perturbed(
    evaluate: Evaluate,
    y: Any,
    draws: Callable[[int], AbstractContextManager[None]],
    calls: int,
) -> Iterator[Any]:
    """What the losses hand to the model, as lists of all measurements: one for each call."""
    owned = isinstance(y, OwnedMeasurements)
    entries = dict(y.local_items()) if owned else {index: y[index] for index in range(len(y))}
    asked: dict[int, list[Any]] = {}
    for index, entry in entries.items():
        questions = _Questions()
        with draws(index):
            evaluate(y=entry, x_net=entry, physics=_Unchanged(), model=questions)
        asked[index] = questions.asked
    for call in range(calls):
        own = {index: questions[call] for index, questions in asked.items()}
        if owned:
            yield y.like(own, key=None if y.key is None else ("perturbed", y.key))
        else:
            yield as_list([own[index] for index in range(len(y))])


class _Questions:
    """Stands in for the model, and notes what it is asked."""

    training = True

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, y: Any, physics: Any, **kwargs: Any) -> Any:
        self.asked.append(y)
        return y


class _Unchanged:
    """Stands in for an operator whose results are not wanted: only their shape is."""

    @staticmethod
    def A(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """The argument."""
        return x

    A_adjoint = A_dagger = A


class _Answers:
    """Stands in for the model, whose answers are known already."""

    training = True

    def __init__(self, images: Sequence[Any], masks: list[torch.Tensor]) -> None:
        self._images = iter(images)
        self._masks = masks

    def __call__(self, y: Any, physics: Any, **kwargs: Any) -> Any:
        return next(self._images)

    def get_masks(self) -> list[torch.Tensor]:
        """The splitting masks of this operator."""
        return self._masks
