"""Explicit priors whose pixels need their neighbours, on sharded images: total variation, wavelets.

DeepInverse's models run as they are; what they cannot do on a sharded image, making arrays of its
shape and differences across the boxes, is done here, one row of pixels a side. Priors that act on
each pixel by itself (Tikhonov, l1) need nothing of this; those on patches are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from deepinv.models import TGVDenoiser, TVDenoiser, WaveletDenoiser, WaveletDictDenoiser
from deepinv.optim.prior import PatchNR, PatchPrior, Prior, TVPrior, WaveletPrior
from torch import nn

from shardinv.exchange import TensorSpec, fetch
from shardinv.geometry import Box, plan_transfers
from shardinv.tensor import ShardedTensor, Sharding, UnsupportedOperation, realign

NEXT, PREVIOUS = 1, -1


def prior_on_shards(prior: Prior) -> Prior:
    """A prior of the same class that takes sharded images too.

    Parameters
    ----------
    prior
        An explicit one. One that needs nothing is returned as it is.

    Returns
    -------
    Prior
        A twin that shares parameters with the one given and keeps the state of its solver apart.
    """
    if isinstance(prior, TVPrior):
        other = twin(prior)
        other.TVModel = model_on_shards(prior.TVModel)
        return other
    if isinstance(prior, WaveletPrior):
        other = twin(prior)
        other.WaveletDenoiser = model_on_shards(prior.WaveletDenoiser)
        return other
    if isinstance(prior, (PatchPrior, PatchNR)):
        other = twin(prior)
        other.__class__ = _refusing(type(prior))
        return other
    return prior


def model_on_shards(model: nn.Module) -> nn.Module:
    """A variational denoiser of the same class that takes sharded images too.

    Parameters
    ----------
    model
        ``TVDenoiser``, ``TGVDenoiser``, ``WaveletDenoiser``, ``WaveletDictDenoiser`` or a subclass;
        another is returned as it is.
    """
    for base, mixin in _MIXINS.items():
        if isinstance(model, base):
            other = twin(model)
            other.__class__ = _combined(mixin, type(model))
            return other
    return model


def plain_class(kind: type) -> type:
    """The class that one made here stands in for; any other class as it is."""
    return kind.__bases__[-1] if kind in _classes.values() else kind


def twin(module: Any) -> Any:
    """A module that shares parameters and submodules with the one given, in tables of its own."""
    other = copy.copy(module)
    # The table is copied, or the module given would change as well.
    other.__dict__["_modules"] = dict(module._modules)
    return other


# -- differences -----------------------------------------------------------------------------------


def gradient(x: ShardedTensor) -> ShardedTensor:
    """Forward differences along each spatial axis, 0 at its end.

    Parameters
    ----------
    x
        Image ``(B, C, *spatial)``.

    Returns
    -------
    ShardedTensor
        ``(B, C, *spatial, axes)``, as of ``deepinv.models.TVDenoiser.nabla``.
    """
    local = x.to_local()
    faces = _faces(x.sharding, local, NEXT)
    steps = [_forward(x.sharding, local, face, axis) for axis, face in enumerate(faces)]
    return ShardedTensor(torch.stack(steps, -1), x.sharding, trailing=1)


def gradient_adjoint(v: ShardedTensor) -> ShardedTensor:
    """The adjoint of :func:`gradient`, ``(B, C, *spatial, axes)`` to ``(B, C, *spatial)``."""
    sharding = v.sharding
    parts = _components_first(v, 1)
    lead = parts.ndim - sharding.ndim - 1
    faces = _faces(sharding, parts, PREVIOUS, of_axis=True)
    total: torch.Tensor | None = None
    for axis, face in enumerate(faces):
        part = _cleared(sharding, parts.select(lead, axis), axis, NEXT)
        term = _shifted(part, face, axis - sharding.ndim, PREVIOUS) - part
        total = term if total is None else total + term
    assert total is not None
    return ShardedTensor(total, sharding)


def jacobian(v: ShardedTensor) -> ShardedTensor:
    """Backward differences of each component, ``(..., axes)`` to ``(..., axes * axes)``.

    As of ``deepinv.models.TGVDenoiser.epsilon``: component i along axis j is entry i * axes + j.
    """
    sharding = v.sharding
    parts = _components_first(v, 1)
    steps = []
    for axis, face in enumerate(_faces(sharding, parts, PREVIOUS)):
        step = parts - _shifted(parts, face, axis - sharding.ndim, PREVIOUS)
        steps.append(_cleared(sharding, step, axis, PREVIOUS))
    lead = parts.ndim - sharding.ndim
    found = torch.stack(steps, lead)  # (B, C, i, j, *spatial)
    last = (found.ndim - 2, found.ndim - 1)
    return ShardedTensor(found.movedim((lead - 1, lead), last).flatten(-2), sharding, trailing=1)


def jacobian_adjoint(g: ShardedTensor) -> ShardedTensor:
    """The adjoint of :func:`jacobian`."""
    sharding = g.sharding
    axes = sharding.ndim
    parts = _components_first(g, 1)
    lead = parts.ndim - axes
    parts = parts.unflatten(lead - 1, (axes, axes))
    faces = _faces(sharding, parts, NEXT, of_axis=True)
    total: torch.Tensor | None = None
    for axis, face in enumerate(faces):
        part = _cleared(sharding, parts.select(lead, axis), axis, PREVIOUS)
        term = part - _shifted(part, face, axis - axes, NEXT)
        total = term if total is None else total + term
    assert total is not None
    return ShardedTensor(total.movedim(lead - 1, -1), sharding, trailing=1)


def _components_first(v: ShardedTensor, trailing: int) -> torch.Tensor:
    """The local part with the components before the spatial axes."""
    if v.trailing != trailing or v.folded is not None:
        raise UnsupportedOperation(
            f"differences of a sharded tensor {tuple(v.shape)}: one axis of components after the "
            f"{v.sharding.ndim} spatial ones is needed, it has {v.trailing}"
        )
    local = v.to_local()
    return local.movedim(-1, local.ndim - 1 - v.sharding.ndim)


def _faces(
    sharding: Sharding, values: torch.Tensor, side: int, *, of_axis: bool = False
) -> list[torch.Tensor]:
    """The row of pixels next to this rank's box along each axis; empty at the image's border.

    One exchange. With ``of_axis`` the axis before the spatial ones is of components, of which each
    row has the one of its own axis.
    """
    axes, boxes = sharding.ndim, sharding.partition.boxes
    targets = []
    for box in boxes:
        rows = [_face(box, sharding.shape, axis, side) for axis in range(axes)]
        if of_axis:
            rows = [Box((k, *row.start), (k + 1, *row.stop)) for k, row in enumerate(rows)]
        targets.append(tuple(rows))
    sources = sharding.layout
    if of_axis:
        sources = tuple((Box((0, *b.start), (axes, *b.stop)),) for b in boxes)
    lead = values.shape[: values.ndim - axes - of_axis]
    plan = plan_transfers(sources, tuple(targets))
    token = torch.zeros((), device=values.device)
    spec = TensorSpec(tuple(lead), values.dtype)
    faces, _ = fetch(sharding.comm, [values], plan, spec, token, "halo")
    return [face.squeeze(len(lead)) for face in faces] if of_axis else faces


def _face(box: Box, shape: Sequence[int], axis: int, side: int) -> Box:
    if side == NEXT:
        first = box.stop[axis]
        last = min(first + 1, shape[axis])
    else:
        last = box.start[axis]
        first = max(last - 1, 0)
    if box.is_empty:
        first = last
    return Box(
        (*box.start[:axis], first, *box.start[axis + 1 :]),
        (*box.stop[:axis], last, *box.stop[axis + 1 :]),
    )


def _shifted(values: torch.Tensor, face: torch.Tensor, dim: int, side: int) -> torch.Tensor:
    """Every pixel's neighbour along an axis, 0 past the border of the image."""
    length = values.shape[dim]
    joined = torch.cat([values, face] if side == NEXT else [face, values], dim)
    missing = 1 - face.shape[dim]
    if missing and length:
        margins = [0, missing] if side == NEXT else [missing, 0]
        joined = F.pad(joined, [0, 0] * (-dim - 1) + margins)
    return joined.narrow(dim, joined.shape[dim] - length if side == NEXT else 0, length)


def _forward(
    sharding: Sharding, local: torch.Tensor, face: torch.Tensor, axis: int
) -> torch.Tensor:
    step = _shifted(local, face, axis - sharding.ndim, NEXT) - local
    return _cleared(sharding, step, axis, NEXT)


def _cleared(sharding: Sharding, values: torch.Tensor, axis: int, side: int) -> torch.Tensor:
    """The values with 0 in the last (or first) row of the image."""
    box, dim = sharding.box, axis - sharding.ndim
    length = values.shape[dim]
    at_border = box.stop[axis] == sharding.shape[axis] if side == NEXT else box.start[axis] == 0
    if not at_border or not length:
        return values
    kept = values.narrow(dim, 0 if side == NEXT else 1, length - 1)
    return F.pad(kept, [0, 0] * (-dim - 1) + ([0, 1] if side == NEXT else [1, 0]))


# -- models ----------------------------------------------------------------------------------------


class _Variation:
    """Total variation: differences across the boxes, and a start of the solver in boxes."""

    restart: bool
    x2: Any
    u2: Any

    @staticmethod
    def nabla(x: torch.Tensor) -> torch.Tensor:
        return gradient(x) if isinstance(x, ShardedTensor) else TVDenoiser.nabla(x)

    @staticmethod
    def nabla_adjoint(x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, ShardedTensor):
            return gradient_adjoint(x)
        return TVDenoiser.nabla_adjoint(x)

    def forward(self, y: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _alike(self.x2, y):
            self.restart = True
        if isinstance(y, ShardedTensor) and self.restart:
            self._begin(y)
            self.restart = False
        result: torch.Tensor = super().forward(y, *args, **kwargs)  # type: ignore[misc]
        return result

    def _begin(self, y: ShardedTensor) -> None:
        self.x2 = y.clone()
        self.u2 = _zeros(y, y.ndim - 2)


class _GeneralisedVariation(_Variation):
    r2: Any

    @staticmethod
    def epsilon(I: torch.Tensor) -> torch.Tensor:  # noqa: E741  DeepInverse's name
        return jacobian(I) if isinstance(I, ShardedTensor) else TGVDenoiser.epsilon(I)

    @staticmethod
    def epsilon_adjoint(G: torch.Tensor) -> torch.Tensor:
        if isinstance(G, ShardedTensor):
            return jacobian_adjoint(G)
        return TGVDenoiser.epsilon_adjoint(G)

    def _begin(self, y: ShardedTensor) -> None:
        self.x2 = y.clone()
        self.r2 = _zeros(y, y.ndim - 2)
        self.u2 = _zeros(y, (y.ndim - 2) ** 2)


class _Wavelets:
    """Wavelets run by the rules of convolutions; their result comes back to the image's boxes."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = super().forward(x, *args, **kwargs)  # type: ignore[misc]
        if isinstance(x, ShardedTensor) and isinstance(result, ShardedTensor):
            return realign(result, x.sharding)
        return result


_MIXINS: dict[type, type] = {
    TGVDenoiser: _GeneralisedVariation,
    TVDenoiser: _Variation,
    WaveletDenoiser: _Wavelets,
    WaveletDictDenoiser: _Wavelets,
}


_classes: dict[tuple[type, type | None], type] = {}


def _combined(mixin: type, model: type) -> type:
    if issubclass(model, mixin):
        return model
    if (model, mixin) not in _classes:
        _classes[model, mixin] = type(model.__name__, (mixin, model), {})
    return _classes[model, mixin]


def _refusing(prior: Any) -> type:
    if (prior, None) in _classes:
        return _classes[prior, None]

    def refuse(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, ShardedTensor):
            raise UnsupportedOperation(
                f"{prior.__name__} draws patches from anywhere in the image, of which this rank "
                "holds a box: gather the image (ctx.gather(x)), or use a prior with a network"
            )
        return prior.fn(self, x, *args, **kwargs)

    return _classes.setdefault((prior, None), type(prior.__name__, (prior,), {"fn": refuse}))


def _alike(state: Any, y: torch.Tensor) -> bool:
    if state is None or isinstance(state, ShardedTensor) != isinstance(y, ShardedTensor):
        return False
    return not isinstance(y, ShardedTensor) or bool(
        state.sharding == y.sharding and state.shape == y.shape
    )


def _zeros(y: ShardedTensor, components: int) -> ShardedTensor:
    local = y.to_local()
    zeros = local.new_zeros((*local.shape, components))
    return ShardedTensor(zeros, y.sharding, trailing=1)
