"""What an operator and a stack by space have in common: layouts, inverses, descriptions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from deepinv.physics import LinearPhysics
from deepinv.physics.forward import ComposedPhysics

from shardinv.blocks import TiedToRanks, check_image
from shardinv.context import DistributedContext
from shardinv.context.images import Mesh
from shardinv.exchange import FirstUse
from shardinv.physics.noise import (
    rank_zero_random,
)
from shardinv.physics.solving import remember, solve
from shardinv.physics.space.program import Branch, LocalProgram
from shardinv.physics.stacked import sharding_of
from shardinv.tensor import (
    LayoutError,
    ShardedTensor,
    Sharding,
    gather,
    scatter,
)


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

    # -- both ways -------------------------------------------------------------------------------

    def normal(
        self, x: torch.Tensor, between: Callable[[int, ShardedTensor], ShardedTensor]
    ) -> torch.Tensor:
        r"""The sum :math:`\sum_i A_i^\top g_i(A_i x)`, lying as ``x``: one halo out, one back.

        Measurements are made one by one, so that few are in memory.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``.
        between
            ``between(index, y)`` gives :math:`g_i` of an operator's sharded output.
        """
        with self._work():
            found = self.program.normal(self._image(x), between)
            return answer(found, not isinstance(x, ShardedTensor))

    def A_adjoint_A(self, x: torch.Tensor, **kwargs: Any) -> Any:
        r"""Apply :math:`A^\top A`; no measurement is kept."""
        self.update_parameters(**kwargs)
        reduction = getattr(self, "reduction_name", "sum")
        if reduction not in ("sum", "mean"):
            return self.A_adjoint(self.A(x))
        total = self.normal(x, lambda _, y: y)
        return total / len(self.program.branches) if reduction == "mean" else total

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
        return self.A_adjoint(v, layout=sharding_of(x), **kwargs)

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
        return self._least_squares(
            y, z, gamma, solver, max_iter, tol, verbose, sharding_of(z), kwargs
        )

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
        remember(self, solver, max_iter, tol)
        adjoint = functools.partial(self.A_adjoint, layout=layout)
        start = torch.zeros_like(adjoint(y)) if z is None else z
        return solve(self, self.A, adjoint, y, start, gamma, verbose=verbose, **kwargs)

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


def answer(x: ShardedTensor, whole: bool) -> torch.Tensor:
    """Gathered where every rank gets the whole."""
    return gather(x) if whole else x


def name_of(source: Any) -> str:
    """An operator in words: its class, or those it is composed of."""
    if isinstance(source, ComposedPhysics):
        return " of ".join(type(part).__name__ for part in reversed(list(source.physics_list)))
    return type(source).__name__
