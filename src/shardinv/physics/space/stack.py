"""A stack of operators on images of which every rank holds a box: one exchange for all."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from deepinv.physics import StackedLinearPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv.context import DistributedContext
from shardinv.context.images import Mesh
from shardinv.physics.noise import (
    Generators,
    common_seed,
    is_noisy,
    stream,
    stream_seed,
)
from shardinv.physics.space.block import LocalBlock, answer, name_of
from shardinv.physics.space.linear import DistributedLocalPhysics
from shardinv.physics.space.registry import LocalForm
from shardinv.tensor import ShardedTensor, Sharding

Measured: TypeAlias = TensorList | Sequence[torch.Tensor]


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
    generators
        Which operators draw noise from a random generator of their own.
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
        generators: Generators | None = None,
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
        self.generators = generators or Generators(
            [getattr(source.noise_model, "rng", None) for source in sources]
        )
        branches = [physics.branch for physics in self.physics_list]
        self._start(ctx, branches, [name_of(source) for source in sources], mesh, align, self)

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
            return TensorList([answer(y, whole if gather is None else gather) for y in outputs])

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
                answer(x, not sharded) for x in self.program.transpose(pieces, image, together)
            ]
            if not together:
                return images
            return images[0] / len(self) if self.reduction_name == "mean" else images[0]

    def noise(self, y: Measured, **kwargs: Any) -> TensorList:
        """Add each operator's noise, the same as by operator and for any number of ranks.

        An operator with a random generator of its own draws what it would undistributed; others
        draw from a stream each, keyed by its index.
        """
        base = common_seed(self.ctx, any(map(is_noisy, self.physics_list)))
        noisy = []
        for index, entry in enumerate(self._check_count(y)):
            physics = self.physics_list[index]
            rng = getattr(physics.noise_model, "rng", None)
            if self.generators.alone(index) or kwargs.get("seed") is not None:
                noisy.append(physics.noise(entry, **kwargs))
                continue
            with stream(stream_seed(base, index), self.ctx.device, rng):
                noisy.append(physics.noise(entry, **kwargs))
        return TensorList(noisy)

    def sensor(self, y: Measured, **kwargs: Any) -> TensorList:
        """Apply each operator's sensor model."""
        entries = self._check_count(y)
        return TensorList([self.physics_list[i].sensor(e, **kwargs) for i, e in enumerate(entries)])

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
