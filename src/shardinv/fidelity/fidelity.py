"""The fidelity of a distributed stack: one term an operator, evaluated by the operator's owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from deepinv.optim.data_fidelity import L1, L2, DataFidelity, IndicatorL2
from deepinv.optim.potential import Potential
from deepinv.sampling import ALDDataFidelity, DPSDataFidelity, ILVRDataFidelity
from deepinv.utils.tensorlist import TensorList

from shardinv.blocks import TiedToRanks, check_image, share_state
from shardinv.context import DistributedContext
from shardinv.exchange import TensorSpec, broadcast_tensors, fan_out
from shardinv.fidelity.options import hand_over
from shardinv.fidelity.posterior import dps_value, ilvr_gradient
from shardinv.fidelity.proximal import dual_proximal
from shardinv.fidelity.space import Local, measurements
from shardinv.fidelity.space import gradient as gradient_in_space
from shardinv.fidelity.space import value as value_in_space
from shardinv.fidelity.terms import FidelitySource, Terms
from shardinv.physics import (
    DistributedLocalPhysics,
    DistributedLocalStack,
    DistributedStackedLinearPhysics,
    DistributedStackedPhysics,
    OwnedMeasurements,
)
from shardinv.physics.measurements import entry_tensors
from shardinv.physics.noise import common_seed, stream, stream_seed
from shardinv.physics.slots import trained_slots
from shardinv.physics.stacked import Measurements, sharding_of

_LOCAL = (DistributedLocalPhysics, DistributedLocalStack)

# Guidance terms that couple all measurements, by solving in the space of the measurements: their
# sum over operators would be another quantity.
_COUPLED = ("PiGDMDataFidelity", "MomentMatchingDataFidelity")


class DistributedDataFidelity(TiedToRanks, DataFidelity):
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
        self.terms = Terms(
            source, ctx.device, num_operators, factory_kwargs, shared=ctx.world_size > 1
        )
        for term in self.terms.modules():
            if type(term).__name__ in _COUPLED:
                raise NotImplementedError(
                    f"{type(term).__name__} couples the measurements of all operators and has no "
                    "form for a stack, in DeepInverse neither; DPSDataFidelity, "
                    "ALDDataFidelity and ScoreSDEDataFidelity have one"
                )
            if isinstance(term, DPSDataFidelity) and reduction == "mean":
                raise ValueError(
                    "the guidance of DPSDataFidelity is a norm over all operators, not a sum that "
                    "has a mean: leave reduction= out"
                )
        self._draws = 0
        self._seed = common_seed(ctx) if self.terms.made_later or self._random() else 0
        if self.terms.single is not None:
            _make_room_for_a_network(self.terms.single)
            share_state(self, self.terms.single)
        with ctx.ledger.block(self.block):
            broadcast_tensors(ctx.comm, self.terms.tensors())

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            terms = self.__dict__.get("terms")
            if terms is None or terms.single is None:
                raise
            return getattr(terms.single, name)

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
            Image ``(B, C, *spatial)``, the same on every rank, or sharded.
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
        space = self._space(physics, x, y)
        if isinstance(single, DPSDataFidelity):
            _check_whole(single, gather)
            value, denoised = dps_value(single, x, y, physics, *args, **_without(kwargs))
            return (value, denoised) if kwargs.get("get_model_outputs") else value
        if space is not None:
            with self.ctx.ledger.block(self.block):
                value = value_in_space(self.terms, x, y, space, args, kwargs)
            return value / self._count(space) if self._mean(physics) else value
        return self._sum(
            lambda term, image, entry, op, given, options: term.forward(
                image, entry, op, *given, **options
            ),
            x,
            y,
            physics,
            gather,
            "fn",
            args,
            kwargs,
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
            Image ``(B, C, *spatial)``, sharded if ``x`` is.
        """
        single = self.terms.single
        space = self._space(physics, x, y)
        if isinstance(single, ILVRDataFidelity):
            _check_whole(single, gather)
            self._draws += 1
            return ilvr_gradient(single, x, y, physics, *args, stream=self._stream, **kwargs)
        if isinstance(single, DPSDataFidelity):
            _check_whole(single, gather)
            with torch.enable_grad():
                point = x.detach().requires_grad_() if not x.requires_grad else x
                value, denoised = dps_value(single, point, y, physics, *args, **_without(kwargs))
                gradient = torch.autograd.grad(value, point, torch.ones_like(value))[0]
            return (gradient, denoised.detach()) if kwargs.get("get_model_outputs") else gradient
        if space is not None:
            self._draws += 1
            with self.ctx.ledger.block(self.block):
                gradient = gradient_in_space(self.terms, x, y, space, args, kwargs)
            return gradient / self._count(space) if self._mean(physics) else gradient
        return self._sum(
            _gradient,
            x,
            y,
            physics,
            gather,
            "grad",
            args,
            kwargs,
        )

    def _sum(
        self,
        evaluate: Callable[..., torch.Tensor],
        x: torch.Tensor,
        y: Measurements,
        physics: DistributedStackedPhysics,
        reduce: bool,
        name: str,
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> torch.Tensor:
        with self.ctx.ledger.block(self.block), physics.trained.lent({}) as (_, tied):
            check_image(self.ctx, physics.first_use, x)
            image, token = physics.enter(x)
            given, options, told = hand_over(self.ctx.comm, physics.first_use, args, kwargs)
            handles, weighed = self._weights(physics)
            owned = physics.own(y)
            token = token + tied + told + weighed + owned.token
            tracked = torch.is_grad_enabled() and token.requires_grad

            def parts() -> Iterator[torch.Tensor]:
                for index, op in physics.operators.local_items():
                    # Some terms mark the very image they are given as in need of a gradient.
                    at = image if image.requires_grad else image.detach()
                    with self._stream(index):
                        part = self.terms.call(
                            index, handles, evaluate, at, owned[index], op, given, options
                        )
                    # And some leave a graph of their own behind, whoever asks.
                    yield part if tracked or trained_slots(op) else part.detach()

            self._draws += 1
            key = None if owned.key is None else (self.block, name, TensorSpec.of(x), owned.key)
            sharding = sharding_of(x) if name == "grad" else None
            total = physics.sum_parts(parts(), token, reduce, key, sharding)
        return total / len(physics) if self._mean(physics) else total

    def _weights(
        self, physics: DistributedStackedPhysics
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Handles of the terms' weights for a call, and the token that ties the call to them.

        The weights' gradients are partial sums as well, and are summed over the ranks inside the
        graph. Those of terms that a factory made are their rank's alone.
        """
        comm = self.ctx.comm
        token = torch.zeros((), device=self.ctx.device)
        if not torch.is_grad_enabled():
            return [], token
        if self.terms.made_later:
            mine = [self.terms[index] for index in physics.ownership.mine]
            count = sum(1 for term in mine for _ in term.parameters())
            told = physics.first_use.facts("how many weights the terms have", self.block, count)
            # Where one rank's result needs a gradient, all ranks' do.
            return [], token.requires_grad_() if any(told) else token
        weights = self.terms.weights()
        return fan_out(comm, *weights) if weights else ([], token)

    def _check(self, physics: Any) -> None:
        if not isinstance(physics, (DistributedStackedPhysics, *_LOCAL)):
            raise TypeError(
                "a distributed fidelity needs a distributed stack, got a "
                f"{type(physics).__name__}: make it with distribute(physics, ctx)"
            )
        self.terms.check_count(self._count(physics))

    def _space(self, physics: Any, *values: Any) -> Local | None:
        """The operators by space, where that is how such images and measurements are worked on."""
        self._check(physics)
        return physics if isinstance(physics, _LOCAL) else physics.by_space(*values)

    @staticmethod
    def _count(physics: Any) -> int:
        return 1 if isinstance(physics, DistributedLocalPhysics) else len(physics)

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
            own_mean = getattr(physics, "reduction_name", "sum") == "mean"
            if self._mean(physics) and not own_mean:
                scale = scale / self._count(physics)
            elif own_mean and not self._mean(physics):
                # The stack's own normal equations have the mean.
                scale = scale * self._count(physics)
            return physics.prox_l2(x, y, scale)
        if isinstance(single, (L1, IndicatorL2)) and self._linear(physics):
            return self._dual(single, x, y, physics, gamma, **kwargs)
        return Potential.prox(self, x, y, physics, *args, gamma=gamma, **kwargs)

    def _linear(self, physics: DistributedStackedPhysics) -> bool:
        return isinstance(physics, (DistributedStackedLinearPhysics, *_LOCAL))

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
        radius: float | torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if kwargs:
            raise TypeError(f"prox of {type(single).__name__} has no option {sorted(kwargs)}")
        if getattr(physics, "reduction_name", "sum") != "sum":
            raise ValueError("this prox needs a stack with reduction='sum', whose adjoint is exact")
        if stepsize is None:
            stepsize = 1.0 / physics.compute_sqnorm(x, verbose=False)
        step = torch.as_tensor(stepsize, device=x.device, dtype=x.real.dtype)
        weight = gamma / self._count(physics) if self._mean(physics) else gamma

        def prox_distance(u: Any, entry: Any, scale: torch.Tensor, weight: Any) -> Any:
            if isinstance(single, IndicatorL2):
                return single.d.prox(u, entry, radius=weight)
            if isinstance(u, TensorList):
                pairs = zip(u.x, entry.x, strict=True)
                return TensorList([soft(a, b, weight / scale) for a, b in pairs])
            return soft(u, entry, weight / scale)

        def soft(u: torch.Tensor, entry: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
            # Not L1Distance.prox: softshrink takes a plain number only, and real values.
            if threshold.ndim == 1:
                threshold = threshold.view(-1, *[1] * (u.ndim - 1))
            shift = u - entry
            return entry + shift.sgn() * (shift.abs() - threshold).clamp(min=0)

        space = self._space(physics, x, y)
        return dual_proximal(
            x,
            physics.own(y) if space is None else measurements(space, x, y),
            physics if space is None else space,
            prox_distance,
            step=step,
            weight=radius if isinstance(single, IndicatorL2) else weight,
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
        def apply(term: DataFidelity, first: Any, second: Any, args: Any, kwargs: Any) -> Any:
            return getattr(term, name)(first, second, *args, **kwargs)

        if isinstance(u, torch.Tensor):
            if self.terms.single is None:
                raise TypeError(
                    f"{name} of {self.terms.count} terms needs a list of points, one for each, "
                    "got a tensor"
                )
            return apply(self.terms[0], u, y, args, kwargs)
        if len(u) != len(y):
            raise ValueError(f"{len(u)} points and {len(y)} measurements are given")
        if isinstance(u, OwnedMeasurements):
            args, kwargs, token = hand_over(u.comm, u.first_use, args, kwargs)
            weights = self.terms.weights() if torch.is_grad_enabled() else []
            handles, tied = fan_out(u.comm, *weights)
            result = u.like(
                {
                    i: self.terms.call(i, handles, apply, entry, y[i], args, kwargs)
                    for i, entry in u.local_items()
                }
            )
            result.token = u.token + token + tied
            if isinstance(y, OwnedMeasurements):
                result.token = result.token + y.token
            elif torch.is_grad_enabled() and any(
                t.requires_grad for entry in y for t in entry_tensors(entry)
            ):
                raise ValueError(
                    f"{name} is given points that know their owner, and full measurements that "
                    "need a gradient: make them know their owner too, with physics.own(y)"
                )
            return result
        return TensorList(
            [apply(self.terms[i], first, y[i], args, kwargs) for i, first in enumerate(u)]
        )

    def describe(self) -> str:
        """What is evaluated where, in words. What is sent, the physics' ``describe`` says."""
        kinds = sorted({type(term).__name__ for term in self.terms.modules()}) or ["factory"]
        return (
            f"fidelity {', '.join(kinds)}: by operator, each rank evaluates the terms of its own "
            "operators, and a value or gradient is one reduction (of a sharded image a gather and "
            "a reduce-scatter); by space, each rank evaluates all terms on its box, and a gradient "
            "is one halo out and one back"
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


def _make_room_for_a_network(term: DataFidelity) -> None:
    """Let a network that is given later, as samplers of DeepInverse do, reach the term itself."""
    if term.__dict__.get("denoiser", term) is None:
        del term.__dict__["denoiser"]
        term.register_module("denoiser", None)


def _check_whole(term: DataFidelity, gather: bool) -> None:
    if not gather:
        raise ValueError(
            f"{type(term).__name__} is no sum over operators: gather=False has no meaning for it"
        )


def _without(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != "get_model_outputs"}
