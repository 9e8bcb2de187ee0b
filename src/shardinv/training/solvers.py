"""Solvers and samplers as they are, on sharded images: what they make themselves is sharded too.

Most need nothing: their iterate is made from the measurements. Some make tensors of its size, such
as the history of Anderson acceleration or the first sample of a diffusion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from deepinv.optim import BaseOptim
from deepinv.sampling import DDRM, BaseSampling, DiffPIR, PosteriorDiffusion
from torch import nn

from shardinv.tensor import sharded_factories

SOLVERS: tuple[type[nn.Module], ...] = (BaseOptim, BaseSampling, DDRM, DiffPIR, PosteriorDiffusion)
"""What runs an algorithm on an iterate."""

_RUNS = ("forward", "sample", "DEQ_additional_step")

Solver = TypeVar("Solver", bound=nn.Module)


def distribute_solver(model: Solver) -> Solver:
    """Let what a solver or sampler makes lie on the ranks as the images that it works on.

    In place; the model becomes an instance of a subclass of its own class. Its fidelity, priors and
    networks stay as they are.
    """
    kind = type(model)
    if not issubclass(kind, SOLVERS):
        raise TypeError(
            "a solver of deepinv.optim or a sampler of deepinv.sampling is needed, got a "
            f"{kind.__name__}"
        )
    if not getattr(kind, "on_shards", False):
        runs = {name: _inside(getattr(kind, name)) for name in _RUNS if hasattr(kind, name)}
        described = {"__module__": kind.__module__, "__doc__": kind.__doc__, "on_shards": True}
        model.__class__ = type(kind.__name__, (kind,), {**described, **runs})
    return model


def solver_class(kind: type) -> type:
    """The class that a solver had before it was distributed; any other class as it is."""
    return kind.__bases__[0] if "on_shards" in kind.__dict__ else kind


def _inside(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with sharded_factories():
            return method(self, *args, **kwargs)

    return run
