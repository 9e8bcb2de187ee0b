"""One operator, or one stack, on images of which every rank holds a box: the blocks solvers see."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from deepinv.optim.linear import least_squares
from deepinv.physics import LinearPhysics, Physics, StackedLinearPhysics, StackedPhysics
from deepinv.physics.forward import ComposedPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv.blocks import TiedToRanks, check_image
from shardinv.context import DistributedContext
from shardinv.context.images import Mesh
from shardinv.exchange import FirstUse
from shardinv.physics.linear import reduction_of
from shardinv.physics.noise import rank_zero_random
from shardinv.physics.space.local import Chain, LocalOperator
from shardinv.physics.space.pointwise import LocalMultiplication
from shardinv.physics.space.program import Branch, LocalProgram
from shardinv.physics.space.registry import LocalForm, make_local_form
from shardinv.tensor import LayoutError, ShardedTensor, Sharding, gather, scatter

Measured: TypeAlias = TensorList | Sequence[torch.Tensor]


class LocalBlock(TiedToRanks, LinearPhysics):
    """What an operator and a stack have in common: layouts, solvers, descriptions."""

    block = "physics"

    ctx: DistributedContext
    program: LocalProgram
    solver: str
    max_iter: int
    tol: float

    def _start(
        self,
        ctx: DistributedContext,
        branches: Sequence[Branch],
        names: Sequence[str],
        mesh: Mesh,
        align: int | Sequence[int],
        source: Any,
    ) -> None:
        self.ctx, self.mesh, self.align, self.names = ctx, mesh, align, tuple(names)
        self.program = LocalProgram(ctx.comm, branches)
        self.first_use = FirstUse(ctx.comm, every_call=ctx.debug)
        for name in ("solver", "max_iter", "tol"):
            setattr(self, name, getattr(source, name, getattr(self, name)))
        # The gradient goes through the solver's steps: DeepInverse's implicit one is a custom
        # autograd.Function, which loses that of a sharded tensor.
        self.implicit_backward_solver = False
        self._kind: tuple[int, int, torch.dtype] = (1, 1, torch.get_default_dtype())

    # -- layouts ---------------------------------------------------------------------------------

    def sharding(self, spatial: Sequence[int]) -> Sharding:
        """How images of a spatial shape lie: as the last one did, or as the context would."""
        latest = self.program.latest(spatial)
        return latest or self.ctx.sharding(spatial, self.mesh, self.align)

    def outputs(self, x: torch.Tensor) -> tuple[Sharding, ...]:
        """How the measurements of an image lie, one for each operator."""
        image = x.sharding if isinstance(x, ShardedTensor) else self.sharding(x.shape[2:])
        return self.program.routes(image).outputs

    def _image(self, x: Any) -> ShardedTensor:
        check_image(self.ctx, self.first_use, x)
        if x.ndim < 3:
            raise ValueError(f"an image (B, C, *spatial) is needed, got shape {tuple(x.shape)}")
        self._kind = (int(x.shape[0]), int(x.shape[1]), x.dtype)
        if isinstance(x, ShardedTensor):
            if x.sharding.comm is not self.ctx.comm:
                raise LayoutError(
                    f"the image is sharded over another group of ranks: {x.sharding}; this block "
                    f"works on {self.ctx}"
                )
            return x
        return scatter(x, self.sharding(x.shape[2:]))

    def _measurements(
        self, y: Sequence[Any], layout: Sharding | None
    ) -> tuple[list[ShardedTensor], Sharding, bool]:
        """Sharded measurements, how the image shall lie, whether to answer with a sharded one."""
        for number, entry in enumerate(y):
            check_image(self.ctx, self.first_use, entry, f"measurement {number}")
        sharded = [isinstance(entry, ShardedTensor) for entry in y]
        if any(sharded) and not all(sharded):
            raise LayoutError(
                f"measurements {[n for n, s in enumerate(sharded) if s]} are sharded, "
                f"{[n for n, s in enumerate(sharded) if not s]} replicated: shard or gather all"
            )
        if all(sharded):
            for entry in y:
                if entry.sharding.comm is not self.ctx.comm:
                    raise LayoutError(
                        f"a measurement is sharded over another group of ranks: {entry.sharding}"
                    )
            return list(y), layout or self.program.image_of(y), True
        image = layout or self.sharding(self.program.image_shape(y[0].shape[2:]))
        outputs = self.program.routes(image).outputs
        for number, (entry, output) in enumerate(zip(y, outputs, strict=True)):
            if tuple(entry.shape[2:]) != output.shape:
                raise ValueError(
                    f"measurement {number} has {tuple(entry.shape[2:])} pixels; {output.shape} "
                    f"are expected for an image of {image.shape}"
                )
        pieces = [scatter(entry, output) for entry, output in zip(y, outputs, strict=True)]
        return pieces, image, layout is not None

    def _work(self) -> Any:
        return self.ctx.ledger.block(self.block)

    # -- norms and inverses ----------------------------------------------------------------------

    def compute_sqnorm(
        self,
        x0: torch.Tensor,
        *,
        max_iter: int = 100,
        tol: float = 1e-3,
        verbose: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        r"""The squared norm :math:`\|A^\top A\|_2`, by the power method.

        Parameters
        ----------
        x0
            An image of the shape, type and layout wanted; its values are not used.
        max_iter, tol, verbose
            Of the power method.
        """
        # Random numbers on a sharded image are the same for any number of ranks by themselves.
        sharded = isinstance(x0, ShardedTensor)
        with nullcontext() if sharded else rank_zero_random(self.ctx, x0):
            return super().compute_sqnorm(
                x0, max_iter=max_iter, tol=tol, verbose=verbose and self.ctx.is_main, **kwargs
            )

    def A_vjp(self, x: torch.Tensor, v: Any, **kwargs: Any) -> Any:
        """The adjoint, lying as ``x``: a linear operator is its own Jacobian."""
        layout = x.sharding if isinstance(x, ShardedTensor) else None
        return self.A_adjoint(v, layout=layout, **kwargs)

    def A_jvp(self, x: torch.Tensor, v: torch.Tensor, **kwargs: Any) -> Any:
        """The operator itself: a linear operator is its own Jacobian."""
        return self.A(v, **kwargs)

    def A_dagger(
        self,
        y: Any,
        solver: str = "CG",
        max_iter: int | None = None,
        tol: float | None = None,
        verbose: bool = False,
        layout: Sharding | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        r"""Solve :math:`\min_x \|A x - y\|^2`. Messages are halos and numbers.

        Parameters
        ----------
        y
            Measurements.
        solver, max_iter, tol, verbose
            As in DeepInverse.
        layout
            How the image shall lie on the ranks; by default as the measurements.
        """
        return self._least_squares(y, None, 1e8, solver, max_iter, tol, verbose, layout, kwargs)

    def prox_l2(
        self,
        z: torch.Tensor | float | None,
        y: Any,
        gamma: float | torch.Tensor,
        solver: str = "CG",
        max_iter: int | None = None,
        tol: float | None = None,
        verbose: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        r"""Solve :math:`\min_x \frac\gamma2\|A x - y\|^2 + \frac12\|x - z\|^2`.

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
        if not isinstance(z, torch.Tensor):
            z = torch.full_like(self.A_adjoint(y), 0.0 if z is None else float(z))
        layout = z.sharding if isinstance(z, ShardedTensor) else None
        return self._least_squares(y, z, gamma, solver, max_iter, tol, verbose, layout, kwargs)

    def _least_squares(
        self,
        y: Any,
        z: torch.Tensor | None,
        gamma: float | torch.Tensor,
        solver: str | None,
        max_iter: int | None,
        tol: float | None,
        verbose: bool,
        layout: Sharding | None,
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        # DeepInverse keeps the last options given, and solvers count on it.
        self.solver = solver if solver is not None else self.solver
        self.max_iter = max_iter if max_iter is not None else self.max_iter
        self.tol = tol if tol is not None else self.tol
        adjoint = functools.partial(self.A_adjoint, layout=layout)
        start = torch.zeros_like(adjoint(y)) if z is None else z
        return least_squares(
            self.A,
            adjoint,
            y,
            z=start,
            init=start,
            gamma=gamma,
            AAT=self.A_A_adjoint,
            ATA=self.A_adjoint_A,
            parallel_dim=[0],
            solver=self.solver,
            max_iter=self.max_iter,
            tol=self.tol,
            verbose=verbose and self.ctx.is_main,
            **kwargs,
        )

    # -- descriptions ----------------------------------------------------------------------------

    def bytes_per_call(
        self, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> dict[str, tuple[int, ...]]:
        """Bytes that each rank sends in a call of ``A`` and ``A_adjoint``, from the boxes.

        Parameters
        ----------
        shape
            ``(B, C, *spatial)`` of the image.
        dtype
            Its type; default: torch's.
        """
        batch, channels, *spatial = shape
        args = (self.sharding(spatial), batch, channels, dtype or torch.get_default_dtype())
        return {
            "A": self.program.bytes_per_call(*args, adjoint=False),
            "A_adjoint": self.program.bytes_per_call(*args, adjoint=True),
        }

    def describe(self, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> str:
        """How the work is laid out: boxes, halo widths, stages, bytes sent in a call.

        Parameters
        ----------
        shape
            ``(B, C, *spatial)`` of an image; default: of the last one seen.
        dtype
            Its type.
        """
        batch, channels, kind = self._kind
        if shape is not None:
            batch, channels, *spatial = shape
            sharding: Sharding | None = self.sharding(spatial)
        else:
            sharding = self.program.newest
        return self.program.describe(self.names, sharding, batch, channels, dtype or kind)

    def __str__(self) -> str:
        return f"{type(self).__name__}(\n{self.describe()}\n)"

    __repr__ = __str__


class DistributedLocalPhysics(LocalBlock):
    r"""An operator on images of which every rank holds a box, with a halo of its neighbours'.

    Made by :func:`local_physics`. A sharded image gives a sharded measurement, and only halos are
    sent. A replicated one is cut, and the measurement gathered.

    Parameters
    ----------
    ctx
        The ranks.
    form
        The operator's local form.
    source
        The operator, for its noise, sensor and solver settings. It is not kept.
    mesh, align
        How replicated images are cut, as for ``ctx.shard``.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        form: LocalForm,
        source: Any,
        *,
        mesh: Mesh = None,
        align: int | Sequence[int] = 1,
    ) -> None:
        super().__init__(
            noise_model=source.noise_model, sensor_model=source.sensor_model, device=ctx.device
        )
        branch = Branch(form if isinstance(form, Chain) else Chain((form,)))
        self._start(ctx, [branch], [_name(source)], mesh, align, source)
        self.to(ctx.device)

    @property
    def branch(self) -> Branch:
        """The chain of the operator."""
        return self.program.branches[0]  # type: ignore[return-value]

    def A(self, x: torch.Tensor, gather: bool | None = None, **kwargs: Any) -> torch.Tensor:
        """Apply the operator.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``.
        gather
            Whether every rank gets the whole measurement; None: where every rank has the image.
        **kwargs
            Parameters of the operator to update.
        """
        self.update_parameters(**kwargs)
        with self._work():
            whole = not isinstance(x, ShardedTensor)
            (y,) = self.program.evaluate(self._image(x))
            return _answer(y, whole if gather is None else gather)

    def A_adjoint(
        self, y: torch.Tensor, layout: Sharding | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Apply the exact adjoint.

        Parameters
        ----------
        y
            Measurement, sharded or replicated.
        layout
            How the image shall lie on the ranks; by default as the measurement's, or replicated.
        **kwargs
            Parameters of the operator to update.
        """
        self.update_parameters(**kwargs)
        with self._work():
            pieces, image, sharded = self._measurements([y], layout)
            (x,) = self.program.transpose(pieces, image)
            return _answer(x, not sharded)

    def noise(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Add noise, the same for both layouts; the operator's mask is applied to it."""
        if not isinstance(x, ShardedTensor):
            image = self.sharding(self.program.image_shape(x.shape[2:]))
            y = scatter(x, self.program.routes(image).outputs[0])
            return _answer(self._noisy(y, **kwargs), whole=True)
        return self._noisy(x, **kwargs)

    def _noisy(self, x: ShardedTensor, **kwargs: Any) -> ShardedTensor:
        noisy = self.noise_model(x, **kwargs)
        stages = self.branch.chain.stages
        if len(stages) > 1:
            return noisy
        if self.branch.cut_for is None:
            self.program.routes(self.program.image_of([x]))
            stages = self.branch.chain.stages
        return noisy.like(stages[0].after_noise(noisy.to_local(), noisy.box))

    def update_parameters(self, **kwargs: Any) -> None:
        """Update the operator's parameters by their names; images and masks are whole ones."""
        if kwargs and self.branch.update(kwargs):
            self.program.forget()

    def prox_l2(
        self, z: torch.Tensor | float | None, y: Any, gamma: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """As for any operator; in one step where the operator is a mask."""
        mask = self._mask()
        if mask is None:
            return super().prox_l2(z, y, gamma, *args, **kwargs)
        x = self.A_adjoint(y) if z is None else self.A_adjoint(y) + z / _spread(gamma, y.ndim)
        weights = self.A_adjoint_A(torch.ones_like(x)) + 1 / _spread(gamma, y.ndim)
        return x / weights

    def _mask(self) -> LocalOperator | None:
        stages = self.branch.chain.stages
        single = len(stages) == 1 and isinstance(stages[0], LocalMultiplication)
        return stages[0] if single else None

    def A_dagger(self, y: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As for any operator; in one step where the operator is a mask."""
        if self._mask() is None:
            return super().A_dagger(y, *args, **kwargs)
        x = self.A_adjoint(y)
        weights = self.A_adjoint_A(torch.ones_like(x))
        # Singular values up to 1e-5 count as zero, as in DeepInverse.
        kept = weights.abs() > 1e-10
        return torch.where(kept, x / torch.where(kept, weights, 1.0), 0.0)


class DistributedLocalStack(LocalBlock, StackedLinearPhysics):
    r"""A stack of operators on images of which every rank holds a box: one halo for all.

    Made by :func:`local_physics`. Each call sends one halo, as wide as the widest operator needs.

    Parameters
    ----------
    ctx
        The ranks.
    forms
        The operators' local forms.
    sources
        The operators, for their noise, sensor and solver settings. They are not kept.
    reduction
        How the adjoint combines the operators' images: ``"sum"``, ``"mean"`` or None (a list).
    mesh, align
        How replicated images are cut, as for ``ctx.shard``.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        forms: Sequence[LocalForm],
        sources: Sequence[Any],
        reduction: str | None = "sum",
        *,
        mesh: Mesh = None,
        align: int | Sequence[int] = 1,
    ) -> None:
        if not forms:
            raise ValueError("a stack needs at least one operator")
        with warnings.catch_warnings():
            # DeepInverse warns of any reduction but a sum, and has done so for the stack given.
            warnings.simplefilter("ignore", DeprecationWarning)
            StackedLinearPhysics.__init__(self, [], reduction=reduction)
        self.reduction_name = reduction
        self.physics_list = [
            DistributedLocalPhysics(ctx, form, source, mesh=mesh, align=align)
            for form, source in zip(forms, sources, strict=True)
        ]
        branches = [physics.branch for physics in self.physics_list]
        self._start(ctx, branches, [_name(source) for source in sources], mesh, align, self)

    def A(self, x: torch.Tensor, gather: bool | None = None, **kwargs: Any) -> TensorList:
        """Apply every operator, after one exchange.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``.
        gather
            Whether every rank gets whole measurements; None: where every rank has the image.
        **kwargs
            Parameters of the operators to update.
        """
        self.update_parameters(**kwargs)
        with self._work():
            whole = not isinstance(x, ShardedTensor)
            outputs = self.program.evaluate(self._image(x))
            return TensorList([_answer(y, whole if gather is None else gather) for y in outputs])

    def A_adjoint(self, y: Measured, layout: Sharding | None = None, **kwargs: Any) -> Any:
        r"""Apply the stack's adjoint, :math:`\sum_i A_i^\top y_i`, before one exchange.

        Parameters
        ----------
        y
            Measurements, all sharded or all replicated.
        layout
            How the image shall lie on the ranks; by default as the measurements, or replicated.
        **kwargs
            Parameters of the operators to update.
        """
        self.update_parameters(**kwargs)
        entries = self._check_count(y)
        with self._work():
            pieces, image, sharded = self._measurements(entries, layout)
            together = self.reduction_name in ("sum", "mean")
            images = [
                _answer(x, not sharded) for x in self.program.transpose(pieces, image, together)
            ]
            if not together:
                return images
            return images[0] / len(self) if self.reduction_name == "mean" else images[0]

    def _check_count(self, y: Any) -> list[torch.Tensor]:
        if isinstance(y, torch.Tensor) or not hasattr(y, "__len__"):
            raise TypeError(
                f"measurements of a stack are a list of {len(self)} tensors, got a "
                f"{type(y).__name__}"
            )
        if len(y) != len(self):
            raise ValueError(
                f"expected {len(self)} measurements, one for each operator, got {len(y)}"
            )
        return [y[number] for number in range(len(y))]

    def update_parameters(self, **kwargs: Any) -> None:
        """Update every operator's parameters by their names."""
        if not kwargs:
            return
        for physics in self.physics_list:
            physics.update_parameters(**kwargs)
        self.program.forget()

    def _least_squares(self, y: Any, *args: Any) -> torch.Tensor:
        if self.reduction_name is None:
            raise ValueError(
                "a stack with reduction=None has no least-squares solution: its adjoint is a list. "
                "Use reduction='sum'"
            )
        entries = y if isinstance(y, TensorList) else TensorList(self._check_count(y))
        if "lsqr" in args[2:3] or (args[2] is None and self.solver == "lsqr"):
            raise ValueError(
                "lsqr works on measurements, of a list of which DeepInverse takes the sum of the "
                "norms for the norm: use solver='CG', 'BiCGStab' or 'minres'"
            )
        return super()._least_squares(entries, *args)


def local_physics(
    source: Physics | Sequence[Physics],
    ctx: DistributedContext,
    *,
    mesh: Mesh = None,
    align: int | Sequence[int] = 1,
    verify: bool = True,
) -> DistributedLocalPhysics | DistributedLocalStack:
    """Distribute an operator or a stack by space: each rank has a box of the image.

    Parameters
    ----------
    source
        A linear operator, a composition, a stack, or a list of them.
    ctx
        The ranks.
    mesh, align
        How replicated images are cut, as for ``ctx.shard``. Sharded ones are taken as they lie.
    verify
        Compare each operator with its local form on a small image.

    Raises
    ------
    shardinv.physics.space.NotLocalError
        If an operator has no local form; names it and says why.
    shardinv.physics.space.LocalFormError
        If a local form is not its operator.
    """
    if isinstance(source, StackedPhysics) or (
        isinstance(source, Sequence) and not isinstance(source, Physics)
    ):
        operators: list[Physics] = []
        for operator in source.physics_list if isinstance(source, StackedPhysics) else source:
            operators.extend(
                operator.physics_list if isinstance(operator, StackedPhysics) else [operator]
            )
        forms = [make_local_form(operator, verify) for operator in operators]
        reduction = reduction_of(source) if isinstance(source, StackedPhysics) else "sum"
        return DistributedLocalStack(ctx, forms, operators, reduction, mesh=mesh, align=align)
    form = make_local_form(source, verify)
    return DistributedLocalPhysics(ctx, form, source, mesh=mesh, align=align)


def _name(source: Any) -> str:
    if isinstance(source, ComposedPhysics):
        return " of ".join(type(part).__name__ for part in reversed(list(source.physics_list)))
    return type(source).__name__


def _answer(x: ShardedTensor, whole: bool) -> torch.Tensor:
    return gather(x) if whole else x


def _spread(gamma: Any, ndim: int) -> Any:
    """A step for each batch entry, with an axis for each of the image's."""
    if isinstance(gamma, torch.Tensor) and gamma.ndim == 1:
        return gamma[(..., *[None] * (ndim - 1))]
    return gamma
