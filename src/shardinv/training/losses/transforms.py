"""Random transforms of sharded images.

A rotation moves pixels anywhere, so the image is gathered, transformed by every rank alike and cut
again; the gradient comes back the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from deepinv.transform import Transform
from torch import nn

from shardinv.context import DistributedContext
from shardinv.tensor import ShardedTensor, gather, scatter


def whole(value: Any) -> Any:
    """What is sharded, gathered; anything else as it is."""
    return gather(value) if isinstance(value, ShardedTensor) else value


def whole_transform(transform: Any, ctx: DistributedContext) -> Any:
    """A transform that also takes sharded images.

    Parameters
    ----------
    transform
        A ``deepinv.transform.Transform``, or any differentiable function of an image.
    ctx
        The ranks.

    Returns
    -------
    callable
        For a ``Transform`` an instance of a subclass of its own class, which shares its generator;
        the one given is left alone. A result of the same size lies as the image did, another as
        ``ctx.sharding`` cuts it.
    """
    if not isinstance(transform, Transform):
        return _OnWhole(transform, ctx)
    kind = type(transform)
    if getattr(kind, "on_whole_images", False):
        return transform

    def method(name: str) -> Callable[..., Any]:
        def run(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            own = getattr(super(twin_kind, self), name)
            return _on_whole(own, x, ctx, *args, **kwargs)

        return run

    described = {"__module__": kind.__module__, "__doc__": kind.__doc__, "on_whole_images": True}
    methods = {name: method(name) for name in ("transform", "inverse")}
    twin_kind = type(kind.__name__, (kind,), {**described, **methods})
    twin = copy.copy(transform)
    twin.__class__ = twin_kind
    return twin


class _OnWhole(nn.Module):
    """A function of images, as a module: it may take the place of one."""

    def __init__(self, function: Callable[..., Any], ctx: DistributedContext) -> None:
        super().__init__()
        self.function, self.ctx = function, ctx

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return _on_whole(self.function, x, self.ctx, *args, **kwargs)


def _on_whole(
    function: Callable[..., Any], x: Any, ctx: DistributedContext, *args: Any, **kwargs: Any
) -> Any:
    if not isinstance(x, ShardedTensor):
        return function(x, *args, **kwargs)
    result = function(gather(x), *args, **kwargs)
    same = tuple(result.shape[2:]) == x.sharding.shape
    return scatter(result, x.sharding if same else ctx.sharding(result.shape[2:]))
