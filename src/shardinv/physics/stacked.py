"""The stack of operators whose work is shared between the ranks.

Every rank applies the operators it owns. Measurements are gathered, images are summed; in the
steady state each call is one collective, or none where the measurements stay with their owners.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from deepinv.physics import LinearPhysics, Physics, StackedPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv.blocks import TiedToRanks, check_image
from shardinv.context import DistributedContext
from shardinv.exchange import (
    DisagreementError,
    FirstUse,
    TensorSpec,
    fan_out,
    sum_over_ranks,
)
from shardinv.geometry import Box, Layout, imbalance
from shardinv.physics.measurements import Measurement, OwnedMeasurements, Ownership, entry_tensors
from shardinv.physics.noise import common_seed, is_noisy, rank_zero_random, stream, stream_seed
from shardinv.physics.operators import DealtOperators, OwnedOperators
from shardinv.physics.summing import add_up
from shardinv.physics.trained import TrainedTensors
from shardinv.tensor import LayoutError, ShardedTensor, Sharding, deliver, fetch_tied

Measurements: TypeAlias = TensorList | Sequence[Measurement] | OwnedMeasurements
"""What a block takes as measurements: a full list, or one that knows its owners."""


class DistributedStackedPhysics(TiedToRanks, StackedPhysics):
    r"""A stack of operators, each applied on the rank that owns it.

    Made by :func:`shardinv.distribute`. Stands in for the ``deepinv.physics.StackedPhysics`` it was
    made from: images are plain tensors, the same on every rank, or sharded, and images made from
    one lie as it does; measurements are full lists on every rank, or lists that know their owner
    (``gather=False``).

    Parameters
    ----------
    ctx
        The ranks.
    dealt
        The operators, dealt to the ranks.

    Notes
    -----
    Operators are called by their owner alone. The gradient of a tensor that they hold, or are given
    as a keyword argument, is the undistributed one on every rank; it raises where it would not be.
    Of operators that a factory made, tensors are their owner's, and so is their gradient. Random
    numbers of the noise models are drawn from a
    stream for each operator, so noise does not depend on the number of ranks.
    """

    block = "physics"

    def __init__(self, ctx: DistributedContext, dealt: DealtOperators) -> None:
        super().__init__([])
        self.ctx = ctx
        self.operators: OwnedOperators = dealt.operators
        self.physics_list = dealt.operators
        self.costs = dealt.costs
        self._generators = dealt.generators
        self.first_use = FirstUse(ctx.comm, every_call=ctx.debug)
        self.trained = TrainedTensors(
            ctx.comm, self.first_use, dealt.operators, dealt.trained, dealt.alone
        )

    # -- forward ---------------------------------------------------------------------------------

    def A(
        self, x: torch.Tensor, gather: bool = True, reduce_op: None = None, **kwargs: Any
    ) -> TensorList | OwnedMeasurements:
        r"""Apply every operator, :math:`y_i = A_i(x)`.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``, the same on every rank, or sharded.
        gather
            Whether every rank gets all measurements, or each keeps its own.
        reduce_op
            For compatibility; None is the only value, since measurements are not summed.
            ``force_input_grad_sync`` is accepted too, and has no effect: gradients always are the
            undistributed ones on every rank.
        **kwargs
            Handed to every operator.

        Returns
        -------
        TensorList or OwnedMeasurements
        """
        kwargs = _operator_options(reduce_op, kwargs)
        with self._work():
            owned = self._apply_all(
                x, lambda _, op, image, given: op.A(image, **given), "A", kwargs
            )
            return owned.gather() if gather else owned

    def forward(
        self, x: torch.Tensor, gather: bool = True, reduce_op: None = None, **kwargs: Any
    ) -> TensorList | OwnedMeasurements:
        """Apply every operator with its noise and sensor model.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``, the same on every rank, or sharded.
        gather
            Whether every rank gets all measurements, or each keeps its own.
        reduce_op
            For compatibility, as in :meth:`A`.
        **kwargs
            Handed to every operator and noise model.
        """
        kwargs = _operator_options(reduce_op, kwargs)
        base = self._seed()

        def measure(
            index: int, op: Physics, image: torch.Tensor, given: Mapping[str, Any]
        ) -> Measurement:
            clean = op.A(image, **given)
            return op.sensor(self._noisy(index, op, clean, base, given))

        with self._work():
            owned = self._apply_all(x, measure, "forward", kwargs)
            return owned.gather() if gather else owned

    def noise(self, y: Measurements, gather: bool = True, **kwargs: Any) -> Any:
        """Add each operator's noise to its measurement; a list gives a list of its kind."""
        base = self._seed()
        return self._map_measurements(
            y,
            lambda index, op, entry, given: self._noisy(index, op, entry, base, given),
            gather,
            "noise",
            kwargs,
        )

    def sensor(self, y: Measurements, gather: bool = True, **kwargs: Any) -> Any:
        """Apply each operator's sensor model; a list gives a list of its kind."""
        return self._map_measurements(
            y, lambda _, op, entry, given: op.sensor(entry, **given), gather, "sensor", kwargs
        )

    def _seed(self) -> int:
        noisy = any(is_noisy(operator) for _, operator in self.operators.local_items())
        return common_seed(self.ctx, noisy)

    def _noisy(
        self, index: int, op: Physics, entry: Measurement, base: int, kwargs: Mapping[str, Any]
    ) -> Measurement:
        rng = getattr(op.noise_model, "rng", None)
        own_generator = rng is not None and self._generators.alone(index)
        if own_generator or kwargs.get("seed") is not None:
            return op.noise(entry, **kwargs)
        with stream(stream_seed(base, index), self.ctx.device, rng):
            return op.noise(entry, **kwargs)

    # -- vector-Jacobian products ----------------------------------------------------------------

    def A_vjp(
        self,
        x: torch.Tensor,
        v: Measurements,
        gather: bool = True,
        reduce_op: str | None = "sum",
        **kwargs: Any,
    ) -> Any:
        r"""Sum the operators' vector-Jacobian products, :math:`\sum_i J_i(x)^\top v_i`.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)`` at which to linearise.
        v
            One vector for each operator, of its measurement's shape.
        gather, reduce_op
            ``gather=False`` or ``reduce_op=None`` leaves this rank's part, not summed over ranks.
        """
        return self._sum_images(
            lambda _, op, image, entry, given: op.A_vjp(image, entry, **given),
            x,
            v,
            gather and reduce_op is not None,
            "A_vjp",
            kwargs,
        )

    def A_jvp(self, x: torch.Tensor, v: torch.Tensor, gather: bool = True) -> Any:
        r"""Apply the operators' Jacobians at ``x`` to ``v``, by forward differentiation."""
        with self._work():
            shared, token = self.enter(v)
            owned = self._apply_all(
                x,
                lambda _, op, image, __: torch.func.jvp(op.A, (image,), (shared,))[1],
                "A_jvp",
                {},
            )
            owned.token = owned.token + token
            return owned.gather() if gather else owned

    def compute_norm(self, x: torch.Tensor, verbose: bool = True) -> torch.Tensor:
        r"""The norm of :math:`J^\top J` for the stack's Jacobian at ``x``, by the power method."""
        with rank_zero_random(self.ctx, x):
            return super().compute_norm(x, verbose=verbose and self.ctx.is_main)

    def A_dagger(self, y: Measurements, x_init: torch.Tensor | None = None) -> torch.Tensor:
        r"""Minimise :math:`\sum_i \|A_i(x) - y_i\|^2` from ``x_init`` by gradient descent.

        Parameters
        ----------
        y
            Measurements.
        x_init
            Where to start; needed, since a stack that isn't linear has no adjoint.
        """
        if x_init is None:
            raise ValueError("a stack that is not linear needs x_init, an image to start from")
        self.check_count(y)
        x, step = x_init, 1e-1
        owned = self.own(y)
        for _ in range(self.max_iter):
            residual = _difference(self.A(x, gather=False), owned)
            x = x - step * self.A_vjp(x, residual)
            after = _difference(self.A(x, gather=False), owned)
            squares = sum(
                (t.detach().abs().double() ** 2).sum()
                for _, entry in after.local_items()
                for t in entry_tensors(entry)
            )
            total = torch.zeros((), dtype=torch.float64, device=self.ctx.device) + squares
            if self.ctx.all_reduce(total) / after.numel() < self.tol:
                break
        return x.clone()

    def by_space(self, *values: Any) -> Any:
        """The same operators by space where that is how such values are worked on; None: never."""
        return None

    # -- parts -----------------------------------------------------------------------------------

    def _work(self) -> Any:
        return self.ctx.ledger.block(self.block)

    def _apply_all(
        self,
        x: torch.Tensor,
        function: Callable[[int, Physics, torch.Tensor, Mapping[str, Any]], Measurement],
        name: str,
        kwargs: Mapping[str, Any],
    ) -> OwnedMeasurements:
        spec = check_image(self.ctx, self.first_use, x)
        image, token = self.enter(x)
        with self.trained.lent(kwargs) as (given, tied):
            entries = {
                index: function(index, op, image, given)
                for index, op in self.operators.local_items()
            }
        return OwnedMeasurements(
            entries,
            self.ownership,
            self.ctx.comm,
            self.first_use,
            token + tied,
            key=(name, spec, _kind(kwargs)),
        )

    def _map_measurements(
        self,
        y: Measurements,
        function: Callable[[int, Physics, Measurement, Mapping[str, Any]], Measurement],
        gather: bool,
        name: str,
        kwargs: Mapping[str, Any],
    ) -> Any:
        with self._work():
            full = not isinstance(y, OwnedMeasurements)
            owned = self.own(y)
            with self.trained.lent(kwargs) as (given, tied):
                result = owned.like(
                    {
                        index: function(index, self.operators[index], entry, given)
                        for index, entry in owned.local_items()
                    },
                    key=None if owned.key is None else (name, owned.key),
                )
            result.token = owned.token + tied
            return result.gather() if gather and full else result

    def _sum_images(
        self,
        function: Callable[[int, Physics, Any, Measurement, Mapping[str, Any]], torch.Tensor],
        x: torch.Tensor | None,
        y: Measurements | None,
        reduce: bool,
        name: str,
        kwargs: Mapping[str, Any],
        sharding: Sharding | None = None,
    ) -> Any:
        """Sum over all operators what each makes of the image and of its measurement."""
        with self._work():
            image: Any = None
            token = None
            if x is not None:
                check_image(self.ctx, self.first_use, x)
                image, token = self.enter(x)
                sharding = sharding_of(x)
            owned = self.own(y) if y is not None else None
            if owned is not None:
                token = owned.token if token is None else token + owned.token
            assert token is not None
            kind = () if owned is None else owned.key
            image_kind = None if x is None else TensorSpec.of(x)
            key = None if kind is None else (name, image_kind, kind, _kind(kwargs))
            with self.trained.lent(kwargs) as (given, tied):
                parts = (
                    function(index, op, image, None if owned is None else owned[index], given)
                    for index, op in self.operators.local_items()
                )
                return self._reduce_images(parts, token + tied, reduce, key, sharding)

    def enter(self, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Hand an image to this rank's operators: whole, as each of them needs it.

        A sharded image is gathered for the call, by the ranks that have operators. Backward, the
        ranks' cotangents are summed into the shards.

        Returns
        -------
        torch.Tensor or None
            The image; None for a rank without operators, where it is sharded.
        torch.Tensor
            The token.
        """
        if not isinstance(x, ShardedTensor):
            (image,), token = fan_out(self.ctx.comm, x)
            return image, token
        pieces, token = fetch_tied(x, self._wanted(x.sharding), operation="gather")
        return (pieces[0] if pieces else None), token

    def _wanted(self, sharding: Sharding) -> Layout:
        whole = (Box.whole(sharding.shape),)
        return tuple(whole if hand else () for hand in self.ownership.hands)

    def _reduce_images(
        self,
        parts: Iterable[torch.Tensor],
        token: torch.Tensor,
        reduce: bool,
        key: Hashable | None,
        sharding: Sharding | None,
    ) -> Any:
        return self.sum_parts(parts, token, reduce, key, sharding)

    def sum_parts(
        self,
        parts: Iterable[torch.Tensor],
        token: torch.Tensor,
        reduce: bool,
        key: Hashable | None,
        sharding: Sharding | None = None,
    ) -> torch.Tensor:
        """Sum this rank's parts as they come, then the ranks' sums, in one reduction.

        Parameters
        ----------
        parts
            One tensor for each of this rank's operators, from a generator: they are added up as
            they are made, so one of them is in memory at a time.
        token
            Ties the sum to where the parts come from, for autograd.
        reduce
            Whether to sum over the ranks.
        key
            What kind of sum this is: those of one kind have one shape. None where that isn't
            known: the ranks then tell each other.
        sharding
            How the sum shall lie on the ranks: it is scattered as it is summed, which sends half as
            much. None gives the whole to every rank.
        """
        partial, owned_sum = add_up(parts)
        mine = TensorSpec.of(partial) if partial is not None else None
        told = self.first_use.facts("the shape of a sum over operators", key, mine)
        specs = [spec for spec in told if spec is not None]
        if any(spec.shape != specs[0].shape for spec in specs):
            raise DisagreementError(
                "operators of different ranks give images of different shapes, which cannot be "
                f"summed: {[str(spec) for spec in told]}"
            )
        # Real and complex images, or float32 and float64, are promoted as in one process.
        dtype = functools.reduce(torch.promote_types, (spec.dtype for spec in specs))
        if sharding is not None and reduce:
            return self._scatter_sum(partial, TensorSpec(specs[0].shape, dtype), token, sharding)
        if partial is None:
            partial = torch.zeros(specs[0].shape, dtype=dtype, device=self.ctx.device)
        elif partial.dtype != dtype:
            partial = partial.to(dtype)
        elif not owned_sum and not partial.requires_grad:
            # A single part may be the operator's input, or a buffer of its own: the reduction works
            # in place, and so may who gets the sum.
            partial = partial.clone()
        if not reduce:
            return partial
        return sum_over_ranks(self.ctx.comm, partial, token)

    def _scatter_sum(
        self,
        partial: torch.Tensor | None,
        spec: TensorSpec,
        token: torch.Tensor,
        sharding: Sharding,
    ) -> ShardedTensor:
        if spec.shape[2:] != sharding.shape:
            raise LayoutError(
                f"the operators give images of shape {spec.shape}, which cannot be sharded as an "
                f"image of {sharding.shape} px"
            )
        return deliver(
            self.ctx.comm,
            [] if partial is None else [partial.to(spec.dtype)],
            self._wanted(sharding),
            sharding,
            TensorSpec(spec.shape[:2], spec.dtype),
            token,
            operation="reduce_scatter",
        )

    @property
    def ownership(self) -> Ownership:
        """Which rank owns which operator."""
        return self.operators.ownership

    def check_count(self, y: Any) -> None:
        """Raise unless ``y`` is a list with a measurement for each operator."""
        if isinstance(y, torch.Tensor) or not hasattr(y, "__len__"):
            raise TypeError(
                f"measurements of a stack are a list of {len(self)} tensors, "
                f"got a {type(y).__name__}"
            )
        if len(y) != len(self):
            raise ValueError(
                f"expected {len(self)} measurements, one for each operator, got {len(y)}"
            )

    def own(self, y: Measurements) -> OwnedMeasurements:
        """This rank's measurements of a list, full or owned, tied to autograd on every rank."""
        self.check_count(y)
        if isinstance(y, OwnedMeasurements):
            if y.ownership.hands != self.ownership.hands:
                raise ValueError(
                    "these measurements were dealt differently from this stack's operators: gather "
                    "them first"
                )
            return y
        entries: list[Measurement] = list(y.x) if isinstance(y, TensorList) else list(y)
        flat: list[torch.Tensor] = []
        # All entries, not this rank's alone: where the list is the same, every rank raises.
        for index, entry in enumerate(entries):
            for tensor in entry_tensors(entry):
                if not isinstance(tensor, torch.Tensor):
                    raise TypeError(
                        f"measurement {index} is a {type(tensor).__name__}, a tensor is needed"
                    )
                if tensor.device.type != self.ctx.device.type:
                    raise ValueError(
                        f"measurement {index} is on {tensor.device}, rank {self.ctx.rank} works on "
                        f"{self.ctx.device}: move it with y.to(ctx.device)"
                    )
                flat.append(tensor)
        tracked = [tensor for tensor in flat if tensor.requires_grad]
        specs = tuple(TensorSpec.of(tensor) for tensor in flat)
        grad = torch.is_grad_enabled()
        self.first_use.same(
            "the shapes and types of measurements, and which need a gradient",
            tuple(zip(specs, (grad and tensor.requires_grad for tensor in flat), strict=True)),
            "They must be the same on every rank",
        )
        shared, token = fan_out(self.ctx.comm, *tracked)
        replaced = {id(t): s for t, s in zip(tracked, shared, strict=True)}

        def swap(entry: Measurement) -> Measurement:
            if isinstance(entry, TensorList):
                return TensorList([replaced.get(id(t), t) for t in entry.x])
            return replaced.get(id(entry), entry)

        return OwnedMeasurements(
            {index: swap(entries[index]) for index in self.ownership.mine},
            self.ownership,
            self.ctx.comm,
            self.first_use,
            token,
            key=("full", specs),
        )

    # -- the rest of a stack ---------------------------------------------------------------------

    def set_noise_model(self, noise_model: Any, item: int = 0, **kwargs: Any) -> None:
        """Set the noise model of operator ``item``; to be called on every rank."""
        index = range(len(self))[item]
        self._generators.replace(index, getattr(noise_model, "rng", None))
        if index in self.ownership.mine:
            self.operators[index].set_noise_model(noise_model, **kwargs)

    def update_parameters(self, **kwargs: Any) -> None:
        """Update parameters of every operator, each on the rank that owns it.

        To be called on every rank: the gradient of a tensor that needs one is every rank's.
        """
        with self._work(), self.trained.lent(kwargs) as (given, _):
            for _, operator in self.operators.local_items():
                operator.update_parameters(**given)

    def describe(self) -> str:
        """How the operators are laid out: who has what, how even the deal is, what is sent."""
        kind = "linear operators" if isinstance(self, LinearPhysics) else "operators"
        ranks = self.ctx.world_size
        lines = [f"{len(self)} {kind} on {ranks} ranks, by operator, dealt by cost"]
        for rank, hand in enumerate(self.ownership.hands):
            cost = sum(self.costs[index] for index in hand)
            lines.append(f"  rank {rank}: operators {list(hand)}, cost {cost:g}")
        lines.append(f"  imbalance {imbalance(self.costs, self.ownership.hands):.3f} (1 is even)")
        share = (ranks - 1) / ranks
        lines.append(
            f"  sent by each rank for a normal operator or a gradient, of n bytes of image: "
            f"{2 * share:.2f} n in one all-reduce where every rank holds the image; "
            f"{share:.2f} n in a gather and {share:.2f} n in a reduce-scatter where it is sharded"
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{type(self).__name__}(\n{self.describe()}\n)"

    __repr__ = __str__


def sharding_of(x: Any) -> Sharding | None:
    """Where an image lies, None where every rank holds it."""
    return x.sharding if isinstance(x, ShardedTensor) else None


def _operator_options(reduce_op: None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are the operators' own, without those of DeepInverse's stack."""
    if reduce_op is not None:
        raise ValueError(f"measurements are not reduced: reduce_op must be None, got {reduce_op!r}")
    if kwargs.get("return_graph_anchor"):
        raise ValueError(
            "return_graph_anchor must be False: the measurements carry their gradient by themselves"
        )
    peers = ("force_input_grad_sync", "return_graph_anchor")
    return {name: value for name, value in kwargs.items() if name not in peers}


def _difference(a: OwnedMeasurements, b: OwnedMeasurements) -> OwnedMeasurements:
    result = a.like({index: entry - b[index] for index, entry in a.local_items()})
    result.token = a.token + b.token
    result.key = None if a.key is None or b.key is None else ("difference", a.key, b.key)
    return result


def _kind(kwargs: Mapping[str, Any]) -> Hashable:
    """What of keyword arguments may decide the shape of a result."""
    return tuple(
        (name, TensorSpec.of(value) if isinstance(value, torch.Tensor) else str(value))
        for name, value in sorted(kwargs.items())
    )
