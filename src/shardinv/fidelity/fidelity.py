"""The fidelity of a distributed stack: one term an operator, evaluated by the operator's owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from deepinv.optim.data_fidelity import L1, L2, DataFidelity, IndicatorL2
from deepinv.optim.potential import Potential
from deepinv.sampling import ALDDataFidelity, DPSDataFidelity
from deepinv.utils.tensorlist import TensorList

from shardinv.blocks import check_image, share_state
from shardinv.context import DistributedContext
from shardinv.exchange import TensorSpec, fan_out
from shardinv.fidelity.posterior import dps_value
from shardinv.fidelity.proximal import dual_proximal
from shardinv.fidelity.terms import FidelitySource, Terms
from shardinv.physics import (
    DistributedStackedLinearPhysics,
    DistributedStackedPhysics,
    OwnedMeasurements,
)
from shardinv.physics.noise import common_seed, stream, stream_seed
from shardinv.physics.stacked import Measurements

# Guidance terms that couple all measurements, by solving in the space of the measurements: their
# sum over operators would be another quantity.
_COUPLED = ("PiGDMDataFidelity", "MomentMatchingDataFidelity")


class DistributedDataFidelity(DataFidelity):
    r"""The fidelity :math:`f(x) = \sum_i d_i(A_i(x), y_i)` of a distributed stack.

    Made by :func:`shardinv.distribute`. Each rank evaluates the terms of the operators that it
    owns; a value or gradient is one reduction, and no measurement is sent.

    Parameters
    ----------
    ctx
        The ranks.
    source
        A fidelity of ``deepinv.optim`` or ``deepinv.sampling`` for all operators, a list or
        ``StackedPhysicsDataFidelity`` with one for each, or a factory.
    num_operators
        How many terms a factory makes.
    factory_kwargs
        Handed to the factory.
    reduction
        ``"sum"`` or ``"mean"`` over the operators; None takes the stack's own for a single
        fidelity, as the undistributed one does, and a sum for a list.

    Raises
    ------
    NotImplementedError
        For a guidance term that couples the measurements of all operators.

    Examples
    --------
    >>> fidelity = distribute(L2(), ctx)                    # doctest: +SKIP
    >>> x = x - stepsize * fidelity.grad(x, y, physics)     # doctest: +SKIP
    """

    block = "fidelity"

    def __init__(
        self,
        ctx: DistributedContext,
        source: FidelitySource,
        num_operators: int | None = None,
        *,
        factory_kwargs: Mapping[str, Any] | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__()
        if reduction not in ("sum", "mean", None):
            raise ValueError(f"reduction must be 'sum', 'mean' or None, got {reduction!r}")
        self.ctx = ctx
        self.reduction = reduction
        self.terms = Terms(source, ctx.device, num_operators, factory_kwargs)
        for term in self.terms.modules():
            if type(term).__name__ in _COUPLED:
                raise NotImplementedError(
                    f"{type(term).__name__} couples the measurements of all operators and has no "
                    "form for a stack, in DeepInverse neither; DPSDataFidelity, "
                    "ALDDataFidelity and ScoreSDEDataFidelity have one"
                )
        self._draws = 0
        self._seed = common_seed(ctx) if self._random() else 0
        if self.terms.single is not None:
            share_state(self, self.terms.single)

    # -- value and gradient ------------------------------------------------------------------------

    def fn(
        self,
        x: torch.Tensor,
        y: Measurements,
        physics: DistributedStackedPhysics,
        *args: Any,
        gather: bool = True,
        **kwargs: Any,
    ) -> Any:
        """The value of the fidelity.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``, the same on every rank.
        y
            Measurements: a full list on every rank, or one that knows its owner.
        physics
            The distributed stack.
        *args, **kwargs
            Handed to every term.
        gather
            False leaves this rank's part, not summed over the ranks.

        Returns
        -------
        torch.Tensor
            ``(B,)``.
        """
        single = self.terms.single
        if isinstance(single, DPSDataFidelity):
            value, denoised = dps_value(single, x, y, physics, *args, **_without(kwargs))
            return (value, denoised) if kwargs.get("get_model_outputs") else value
        return self._sum(
            lambda term, image, entry, op: term.forward(image, entry, op, *args, **kwargs),
            x,
            y,
            physics,
            gather,
            "fn",
        )

    def grad(
        self,
        x: torch.Tensor,
        y: Measurements,
        physics: DistributedStackedPhysics,
        *args: Any,
        gather: bool = True,
        **kwargs: Any,
    ) -> Any:
        """The gradient of the fidelity with respect to ``x``. Parameters as for :meth:`fn`.

        Returns
        -------
        torch.Tensor
            Image ``(B, C, *spatial)``.
        """
        single = self.terms.single
        if isinstance(single, DPSDataFidelity):
            with torch.enable_grad():
                point = x.detach().requires_grad_() if not x.requires_grad else x
                value, denoised = dps_value(single, point, y, physics, *args, **_without(kwargs))
                gradient = torch.autograd.grad(value, point, torch.ones_like(value))[0]
            return (gradient, denoised.detach()) if kwargs.get("get_model_outputs") else gradient
        return self._sum(
            lambda term, image, entry, op: _gradient(term, image, entry, op, args, kwargs),
            x,
            y,
            physics,
            gather,
            "grad",
        )

    def _sum(
        self,
        evaluate: Callable[[DataFidelity, torch.Tensor, Any, Any], torch.Tensor],
        x: torch.Tensor,
        y: Measurements,
        physics: DistributedStackedPhysics,
        reduce: bool,
        name: str,
    ) -> torch.Tensor:
        self._check(physics)
        with self.ctx.ledger.block(self.block):
            check_image(self.ctx, physics.first_use, x)
            (image,), token = fan_out(self.ctx.comm, x)
            owned = physics.own(y)
            kind = physics.measurement_kind(y)
            # Some terms of DeepInverse leave a graph of their own behind, whoever asks.
            keep = torch.is_grad_enabled() and (
                x.requires_grad
                or token.requires_grad
                or owned.token.requires_grad
                or any(p.requires_grad for t in self.terms.modules() for p in t.parameters())
            )

            def parts() -> Iterator[torch.Tensor]:
                for index, op in physics.operators.local_items():
                    with self._stream(index):
                        part = evaluate(self.terms[index], image, owned[index], op)
                    yield part if keep else part.detach()

            self._draws += 1
            key = None if kind is None else (self.block, name, TensorSpec.of(x), kind)
            total = physics.sum_parts(parts(), token + owned.token, reduce, key)
        return total / len(physics) if self._mean(physics) else total

    def _check(self, physics: Any) -> None:
        if not isinstance(physics, DistributedStackedPhysics):
            raise TypeError(
                "a distributed fidelity needs a distributed stack, got a "
                f"{type(physics).__name__}: make it with distribute(physics, ctx)"
            )
        self.terms.check_count(len(physics))

    def _mean(self, physics: DistributedStackedPhysics) -> bool:
        if self.reduction is not None or self.terms.single is None:
            return self.reduction == "mean"
        return getattr(physics, "reduction_name", "sum") == "mean"

    def _random(self) -> bool:
        return any(hasattr(term, "rng") for term in self.terms.modules())

    def _stream(self, index: int) -> Any:
        """A stream of random numbers for each operator and call, where a term draws some."""
        if not isinstance(self.terms[index], ALDDataFidelity) or not self._random():
            return nullcontext()
        seed = stream_seed(stream_seed(self._seed, self._draws), index)
        return stream(seed, self.ctx.device, getattr(self.terms[index], "rng", None))

    # -- proximal operators ------------------------------------------------------------------------

    def prox(
        self,
        x: torch.Tensor,
        y: Measurements,
        physics: DistributedStackedPhysics,
        *args: Any,
        gamma: float | torch.Tensor = 1.0,
        **kwargs: Any,
    ) -> torch.Tensor:
        r"""The proximal operator, :math:`\arg\min_t \gamma f(t) + \tfrac12\|t - x\|^2`.

        An ``L2`` solves its linear system; ``L1`` and ``IndicatorL2`` iterate on their dual
        (options ``stepsize``, ``crit_conv``, ``max_iter``, and ``radius``); every other fidelity,
        and any list of them, goes down the gradient (``stepsize_inter``, ``max_iter_inter``,
        ``tol_inter``), as in DeepInverse.

        Returns
        -------
        torch.Tensor
            Image ``(B, C, *spatial)``.
        """
        self._check(physics)
        single = self.terms.single
        if isinstance(single, L2) and type(single).prox is L2.prox and self._linear(physics):
            scale = gamma * single.norm
            return physics.prox_l2(x, y, scale / len(physics) if self._mean(physics) else scale)
        if isinstance(single, (L1, IndicatorL2)) and self._linear(physics):
            return self._dual(single, x, y, physics, gamma, **kwargs)
        return Potential.prox(self, x, y, physics, *args, gamma=gamma, **kwargs)

    def _linear(self, physics: DistributedStackedPhysics) -> bool:
        return isinstance(physics, DistributedStackedLinearPhysics)

    def _dual(
        self,
        single: L1 | IndicatorL2,
        x: torch.Tensor,
        y: Measurements,
        physics: DistributedStackedLinearPhysics,
        gamma: float | torch.Tensor,
        *,
        stepsize: float | torch.Tensor | None = None,
        crit_conv: float = 1e-5,
        max_iter: int = 100,
        radius: float | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if kwargs:
            raise TypeError(f"prox of {type(single).__name__} has no option {sorted(kwargs)}")
        if physics.reduction_name != "sum":
            raise ValueError("this prox needs a stack with reduction='sum', whose adjoint is exact")
        if stepsize is None:
            stepsize = 1.0 / physics.compute_sqnorm(x, verbose=False)
        step = torch.as_tensor(stepsize, device=x.device, dtype=x.real.dtype)
        weight = gamma / len(physics) if self._mean(physics) else gamma

        def prox_distance(_: int, u: Any, entry: Any, scale: torch.Tensor) -> Any:
            if isinstance(single, IndicatorL2):
                return single.d.prox(u, entry, radius=radius)
            threshold = weight / scale
            # Not L1Distance.prox: softshrink takes a plain number only, and would wait for it.
            shift = u - entry
            return entry + shift.sign() * (shift.abs() - threshold).clamp(min=0)

        return dual_proximal(
            x,
            physics.own(y),
            physics,
            prox_distance,
            step=step,
            crit_conv=crit_conv,
            max_iter=max_iter,
        )

    # -- the distance alone ------------------------------------------------------------------------

    def grad_d(self, u: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """The gradient of each term's distance at ``u``: a list for lists, as the arguments are."""
        return self._entrywise("grad_d", u, y, args, kwargs)

    def prox_d(self, u: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """The proximal operator of each term's distance at ``u``, as the arguments are."""
        return self._entrywise("prox_d", u, y, args, kwargs)

    def prox_d_conjugate(self, u: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """The proximal operator of each distance's convex conjugate, as the arguments are."""
        return self._entrywise("prox_d_conjugate", u, y, args, kwargs)

    def _entrywise(self, name: str, u: Any, y: Any, args: Any, kwargs: Any) -> Any:
        def apply(index: int, first: Any, second: Any) -> Any:
            return getattr(self.terms[index], name)(first, second, *args, **kwargs)

        if isinstance(u, torch.Tensor):
            return apply(0, u, y)
        if len(u) != len(y):
            raise ValueError(f"{len(u)} points and {len(y)} measurements are given")
        if isinstance(u, OwnedMeasurements):
            return u.like({i: apply(i, entry, y[i]) for i, entry in u.local_items()}, key=u.key)
        return TensorList([apply(i, first, y[i]) for i, first in enumerate(u)])

    def describe(self) -> str:
        """What is evaluated where, in words."""
        kinds = sorted({type(term).__name__ for term in self.terms.modules()}) or ["factory"]
        return (
            f"fidelity {', '.join(kinds)}: each rank evaluates the terms of its own operators; "
            "a value or gradient is one all-reduce"
        )

    def extra_repr(self) -> str:
        """What ``repr`` shows of the block."""
        return self.describe()


def _gradient(
    term: DataFidelity, image: torch.Tensor, entry: Any, op: Any, args: Any, kwargs: Any
) -> torch.Tensor:
    if type(term).grad is L2.grad:
        # L2.grad applies the adjoint twice, to A x and to y; to their difference is the same.
        return DataFidelity.grad(term, image, entry, op, *args, **kwargs)
    return term.grad(image, entry, op, *args, **kwargs)


def _without(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != "get_model_outputs"}
