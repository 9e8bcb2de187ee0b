"""The stack of linear operators: adjoints, norms and inverses of the stack as a whole."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from deepinv.physics import LinearPhysics, StackedLinearPhysics, StackedPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv.context import DistributedContext
from shardinv.exchange import TensorSpec, gather_list, sum_over_ranks
from shardinv.physics.measurements import Measurement, OwnedMeasurements
from shardinv.physics.noise import rank_zero_random
from shardinv.physics.operators import DealtOperators
from shardinv.physics.packing import Packing
from shardinv.physics.solving import remember, solve
from shardinv.physics.stacked import DistributedStackedPhysics, Measurements, sharding_of
from shardinv.tensor import LayoutError, ShardedTensor, Sharding


class DistributedStackedLinearPhysics(DistributedStackedPhysics, StackedLinearPhysics):
    r"""A stack of linear operators, each applied on the rank that owns it.

    As :class:`DistributedStackedPhysics`, and with what linear operators have. ``A_dagger`` and
    ``compute_norm`` are those of the whole stack, as if it had not been distributed.

    Parameters
    ----------
    ctx
        The ranks.
    dealt
        The operators, dealt to the ranks.
    reduction
        How the adjoint combines the operators' images: ``"sum"``, ``"mean"`` or None (a list).
    """

    solver: str
    max_iter: int
    tol: float

    def __init__(
        self, ctx: DistributedContext, dealt: DealtOperators, reduction: str | None = "sum"
    ) -> None:
        DistributedStackedPhysics.__init__(self, ctx, dealt)
        if reduction not in ("sum", "mean", "none", None):
            raise ValueError(f"reduction must be 'sum', 'mean' or None, got {reduction!r}")
        self.reduction_name = None if reduction == "none" else reduction
        with warnings.catch_warnings():
            # DeepInverse warns of any reduction but a sum, and has done so for the stack given.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.reduction = StackedLinearPhysics([], reduction=reduction).reduction

    def A_adjoint(
        self,
        y: Measurements,
        gather: bool = True,
        reduce_op: str | None = "sum",
        layout: Sharding | None = None,
        **kwargs: Any,
    ) -> Any:
        r"""Apply the stack's adjoint, :math:`\sum_i A_i^\top y_i`, in one reduction.

        Parameters
        ----------
        y
            Measurements: a full list on every rank, or a list that knows its owner.
        gather, reduce_op
            ``gather=False`` or ``reduce_op=None`` leaves this rank's part, not summed over ranks.
        layout
            How the image shall lie on the ranks (``ctx.sharding(spatial)``, or another image's
            ``x.sharding``): it is summed straight into the shards, and no rank holds it. None gives
            it to every rank.
        **kwargs
            Handed to every operator.

        Returns
        -------
        torch.Tensor
            Image ``(B, C, *spatial)`` (a list of one an operator with ``reduction=None``).

        Raises
        ------
        ValueError
            If there are more or fewer measurements than operators, or one is on another device.
        """
        return self._sum_images(
            lambda _, op, __, entry, given: op.A_adjoint(entry, **given),
            None,
            y,
            gather and reduce_op is not None,
            "A_adjoint",
            kwargs,
            layout,
        )

    def A_vjp(
        self,
        x: torch.Tensor,
        v: Measurements,
        gather: bool = True,
        reduce_op: str | None = "sum",
        **kwargs: Any,
    ) -> Any:
        """The adjoint: a linear operator is its own Jacobian."""
        return self.A_adjoint(
            v, gather=gather, reduce_op=reduce_op, layout=sharding_of(x), **kwargs
        )

    def A_jvp(self, x: torch.Tensor, v: torch.Tensor, gather: bool = True) -> Any:
        """The stack itself: a linear operator is its own Jacobian."""
        return self.A(v, gather=gather)

    def A_adjoint_A(
        self, x: torch.Tensor, gather: bool = True, reduce_op: str | None = "sum", **kwargs: Any
    ) -> Any:
        r"""Apply :math:`\sum_i A_i^\top A_i` in one reduction; no measurement leaves its rank."""
        return self._sum_images(
            lambda _, op, image, __, given: op.A_adjoint_A(image, **given),
            x,
            None,
            gather and reduce_op is not None,
            "A_adjoint_A",
            kwargs,
        )

    def A_A_adjoint(self, y: Measurements, gather: bool = True, **kwargs: Any) -> Any:
        r"""Apply :math:`A A^\top` to measurements."""
        return self.A(self.A_adjoint(y, **kwargs), gather=gather, **kwargs)

    def _reduce_images(
        self,
        parts: Iterable[torch.Tensor],
        token: torch.Tensor,
        reduce: bool,
        key: Hashable | None,
        sharding: Sharding | None,
    ) -> Any:
        if self.reduction_name is None:
            if sharding is not None:
                raise LayoutError(
                    "the adjoint of a stack with reduction=None is a list of whole images, which "
                    "cannot be sharded: use reduction='sum'"
                )
            tensors = list(parts)
            if not reduce:
                return tensors
            told = self.first_use.facts(
                "the shapes of the adjoints", key, [TensorSpec.of(t) for t in tensors]
            )
            images = gather_list(self.ctx.comm, tensors, told, token)
            order = [index for hand in self.ownership.hands for index in hand]
            return [
                image for _, image in sorted(zip(order, images, strict=True), key=lambda p: p[0])
            ]
        total = self.sum_parts(parts, token, reduce, key, sharding)
        return total / len(self) if self.reduction_name == "mean" else total

    # -- norms and inverses of the whole stack ---------------------------------------------------

    # Squared by default, as in DeepInverse; it asks compute_sqnorm, which is below.
    compute_norm = LinearPhysics.compute_norm

    def compute_sqnorm(
        self,
        x0: torch.Tensor,
        *,
        max_iter: int = 100,
        tol: float = 1e-3,
        verbose: bool = True,
        rng: torch.Generator | None = None,
        local_only: bool = False,
        gather: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        r"""The squared norm :math:`\|\sum_i A_i^\top A_i\|_2` of the stack, by the power method.

        Parameters
        ----------
        x0
            An image of the shape, type and device wanted; its values are not used.
        max_iter, tol, verbose
            Of the power method.
        rng
            As in DeepInverse, accepted and not used.
        local_only
            Return the *upper bound* :math:`\sum_i \|A_i\|^2` instead, which needs one small
            message in all but may be larger than the norm by a factor of the number of operators.
        gather
            For compatibility: with ``local_only``, False leaves this rank's part of the bound.
        **kwargs
            Handed to every operator.

        Returns
        -------
        torch.Tensor
            A number, the same on every rank.
        """
        if isinstance(x0, ShardedTensor):
            # Random numbers on a sharded image are the same for any number of ranks by themselves.
            source: Any = nullcontext()
        else:
            source = rank_zero_random(self.ctx, x0)
        if not local_only:
            with source:
                return LinearPhysics.compute_sqnorm(
                    self,
                    x0,
                    max_iter=max_iter,
                    tol=tol,
                    verbose=verbose and self.ctx.is_main,
                    **kwargs,
                )
        if isinstance(x0, ShardedTensor):
            raise LayoutError(
                "local_only needs an image that every rank holds: each operator's norm is its "
                "owner's. Give a small one, whose shape the operators take"
            )
        bound = torch.zeros((), device=self.ctx.device, dtype=x0.real.dtype)
        with self._work(), source, self.trained.lent(kwargs) as (given, tied):
            for _, operator in self.operators.local_items():
                bound = bound + operator.compute_sqnorm(
                    x0, max_iter=max_iter, tol=tol, verbose=False, **given
                )
            if gather:
                bound = sum_over_ranks(self.ctx.comm, bound, tied)
        return bound / len(self) if self.reduction_name == "mean" else bound

    def A_dagger(  # type: ignore[override]
        self,
        y: Measurements,
        solver: str = "CG",
        max_iter: int | None = None,
        tol: float | None = None,
        verbose: bool = False,
        *,
        local_only: bool = False,
        gather: bool = True,
        layout: Sharding | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        r"""Solve the whole stack's least squares, :math:`\min_x \sum_i\|A_i x - y_i\|^2`.

        Parameters
        ----------
        y
            Measurements.
        solver, max_iter, tol, verbose
            As in DeepInverse; CG, minres and BiCGStab send one image an iteration and no
            measurement.
        local_only
            Return the mean of the operators' own pseudo-inverses instead: an *approximation*, with
            one reduction in all, which is the solution only where the operators agree.
        gather
            For compatibility; with ``local_only``, False leaves this rank's part of the sum.
        layout
            How the image shall lie on the ranks, as for :meth:`A_adjoint`.
        """
        if local_only:
            mean = self._sum_images_plainly(
                lambda op, entry, given: op.A_dagger(
                    entry, solver=solver, max_iter=max_iter, tol=tol, **given
                ),
                y,
                gather,
                kwargs,
            )
            return mean / len(self)
        remember(self, solver, max_iter, tol)
        return self._least_squares(y, None, 1e8, verbose, layout, **kwargs)

    def prox_l2(
        self,
        z: torch.Tensor | float | None,
        y: Measurements,
        gamma: float | torch.Tensor,
        solver: str = "CG",
        max_iter: int | None = None,
        tol: float | None = None,
        verbose: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        r"""Solve :math:`\min_x \frac\gamma2 \sum_i\|A_i x - y_i\|^2 + \frac12\|x - z\|^2`.

        Parameters
        ----------
        z
            Image, or a number that fills one.
        y
            Measurements.
        gamma
            Step, above 0; a number, or one for each batch entry.
        solver, max_iter, tol, verbose
            As in DeepInverse.
        """
        remember(self, solver, max_iter, tol)
        if not isinstance(z, torch.Tensor):
            z = torch.full_like(self.A_adjoint(y), 0.0 if z is None else float(z))
        return self._least_squares(y, z, gamma, verbose, sharding_of(z), **kwargs)

    def _least_squares(
        self,
        y: Measurements,
        z: torch.Tensor | None,
        gamma: float | torch.Tensor,
        verbose: bool,
        layout: Sharding | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        self.check_count(y)
        if self.reduction_name is None:
            raise ValueError(
                "a stack with reduction=None has no least-squares solution: its adjoint is a list. "
                "Use reduction='sum'"
            )
        if not isinstance(y, (TensorList, OwnedMeasurements)):
            y = TensorList(list(y))
        adjoint: Callable[..., Any] = functools.partial(self.A_adjoint, layout=layout)
        start = torch.zeros_like(adjoint(y)) if z is None else z
        forward: Callable[..., Any] = self.A
        right: Any = y
        if self.solver == "lsqr":
            # The one solver that works on measurements, not on images alone. It gets them as one
            # vector: of a list it would take the sum of the entries' norms for the norm.
            full = y.gather() if isinstance(y, OwnedMeasurements) else y
            packing = Packing.of(full)
            forward = lambda x: packing.pack(self.A(x))  # noqa: E731
            adjoint = lambda v: self.A_adjoint(packing.unpack(v), layout=layout)  # noqa: E731
            right = packing.pack(full)
        return solve(self, forward, adjoint, right, start, gamma, verbose=verbose, **kwargs)

    def _sum_images_plainly(
        self,
        function: Callable[[Any, Measurement, Mapping[str, Any]], torch.Tensor],
        y: Measurements,
        reduce: bool,
        kwargs: Mapping[str, Any],
    ) -> torch.Tensor:
        with self._work():
            owned = self.own(y)
            with self.trained.lent(kwargs) as (given, tied):
                parts = (
                    function(self.operators[index], entry, given)
                    for index, entry in owned.local_items()
                )
                return self.sum_parts(parts, owned.token + tied, reduce, None)


def reduction_of(stack: StackedPhysics) -> str | None:
    """The name of a stack's reduction, which DeepInverse keeps as a function only."""
    reduction = getattr(stack, "reduction", sum)
    outcome = reduction([2.0, 4.0])
    return {6.0: "sum", 3.0: "mean"}.get(outcome) if isinstance(outcome, float) else None
