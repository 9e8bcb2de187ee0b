"""One operator, or a composition, on images of which every rank holds a box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardinv.context import DistributedContext
from shardinv.context.images import Mesh
from shardinv.physics.space.block import LocalBlock, answer, name_of
from shardinv.physics.space.local import Chain, LocalOperator
from shardinv.physics.space.pointwise import LocalMultiplication
from shardinv.physics.space.program import Branch
from shardinv.physics.space.registry import LocalForm
from shardinv.tensor import ShardedTensor, Sharding, scatter

__all__ = ["DistributedLocalPhysics", "LocalBlock"]


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
        self._start(ctx, [branch], [name_of(source)], mesh, align, source)
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
            return answer(y, whole if gather is None else gather)

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
            return answer(x, not sharded)

    def noise(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Add noise, the same for both layouts; the operator's mask is applied to it."""
        if not isinstance(x, ShardedTensor):
            image = self.sharding(self.program.image_shape(x.shape[2:]))
            y = scatter(x, self.program.routes(image).outputs[0])
            return answer(self._noisy(y, **kwargs), whole=True)
        return self._noisy(x, **kwargs)

    def _noisy(self, x: ShardedTensor, **kwargs: Any) -> ShardedTensor:
        noisy = self.noise_model(x, **kwargs)
        stages = self.branch.chain.stages
        if len(stages) > 1:
            return noisy
        if self.branch.cut_for is None:
            self.program.routes(self.program.image_of([x]))
            stages = self.branch.chain.stages
        ((kernels,),) = self.program.kernels()
        return noisy.like(stages[0].after_noise(noisy.to_local(), noisy.box, kernels))

    def update_parameters(self, **kwargs: Any) -> None:
        """Update the operator's parameters by their names; images and masks are whole ones."""
        if kwargs and self.branch.update(kwargs):
            self.program.forget()

    def prox_l2(
        self, z: torch.Tensor | float | None, y: Any, gamma: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """As for any operator; in one step where the operator is a mask."""
        mask = self._mask()
        if not isinstance(gamma, torch.Tensor):
            # In the measurement's precision, as DeepInverse has it; a plain number becomes float32.
            gamma = torch.tensor(gamma, dtype=y.real.dtype, device=y.device)
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


def _spread(gamma: Any, ndim: int) -> Any:
    """A step for each batch entry, with an axis for each of the image's."""
    if isinstance(gamma, torch.Tensor) and gamma.ndim == 1:
        return gamma[(..., *[None] * (ndim - 1))]
    return gamma
