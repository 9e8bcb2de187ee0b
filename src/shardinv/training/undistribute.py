"""The way back: the objects of DeepInverse that distributed ones were made from.

For blocks that every rank has whole: networks, priors, fidelities, and solvers and modules with
such blocks. Operators that were dealt to the ranks are on no single one and can't be given back.
"""

from __future__ import annotations

from typing import Any

from deepinv.optim import BaseOptim
from deepinv.optim.data_fidelity import DataFidelity, StackedPhysicsDataFidelity
from deepinv.optim.prior import Prior
from torch import nn

from shardinv.denoise import DistributedProcessing, plain_class, twin
from shardinv.fidelity import DistributedDataFidelity
from shardinv.physics import (
    DistributedLocalPhysics,
    DistributedLocalStack,
    DistributedStackByLayout,
    DistributedStackedPhysics,
)
from shardinv.training.memory import keep_iterations
from shardinv.training.solvers import solver_class

_OPERATORS = (
    DistributedStackedPhysics,
    DistributedStackByLayout,
    DistributedLocalPhysics,
    DistributedLocalStack,
)


def undistribute(object: Any) -> Any:
    """Give back the undistributed object, with the weights that it has now.

    Parameters
    ----------
    object
        A network, fidelity, prior or solver from ``distribute``, or a module of your own that has
        such blocks, or lists of them, as submodules. A solver or module of your own is changed in
        place.

    Returns
    -------
    object
        The very network or fidelity that was distributed; a prior of the same class; the solver or
        module itself, of its own class again. Weights are not copied. What isn't distributed is
        returned as it is.

    Raises
    ------
    TypeError
        If it is, or has, a distributed operator, or a fidelity that a factory made.

    Examples
    --------
    >>> from deepinv.optim import L2
    >>> from shardinv import DistributedContext, distribute, undistribute
    >>> with DistributedContext() as ctx:
    ...     undistribute(distribute(L2(), ctx))
    L2(
      (d): L2Distance()
    )
    """
    if not isinstance(object, nn.Module):
        raise TypeError(
            f"a distributed network, fidelity, prior, solver or module is needed, got a "
            f"{type(object).__name__}"
        )
    _refuse_operators(object)
    return _plain(object, {})


def _refuse_operators(module: nn.Module) -> None:
    # Before anything is changed in place.
    for name, part in module.named_modules():
        where = f"{type(module).__name__}.{name} is" if name else "this is"
        if isinstance(part, _OPERATORS):
            raise TypeError(
                f"{where} a distributed operator ({type(part).__name__}), whose parts may be on "
                "other ranks: keep the operator that you gave to distribute(), or build it anew"
            )
        if isinstance(part, DistributedDataFidelity) and part.terms.made_later:
            raise TypeError(
                f"{where} a distributed fidelity whose terms a factory made, each on the rank of "
                "its operator: call the factory for every operator instead"
            )


def _plain(module: Any, done: dict[int, Any]) -> Any:
    """The plain module of one, or of its parts; the same one for each use of a block."""
    if id(module) not in done:
        done[id(module)] = module  # for a module that has itself among its parts
        done[id(module)] = _undo(module, done)
    return done[id(module)]


def _undo(module: Any, done: dict[int, Any]) -> Any:
    if isinstance(module, DistributedProcessing):
        inner = module.processor
        return _plain(inner, done) if isinstance(inner, nn.Module) else inner
    if isinstance(module, DistributedDataFidelity):
        return _plain(_fidelity(module), done)
    if not _has_blocks(module):
        return module
    if isinstance(module, Prior) or plain_class(type(module)) is not type(module):
        # The distributed one, which may be in use elsewhere, stays what it is.
        module = twin(module)
    kind = solver_class(plain_class(type(module)))
    if kind is not type(module):
        module.__class__ = kind
    for name, part in list(module._modules.items()):
        if part is not None:
            plain = _plain(part, done)
            del module._modules[name]  # a function is no submodule, and takes its place
            setattr(module, name, plain)
    if isinstance(module, BaseOptim):
        keep_iterations(module)
        # One that isn't unrolled has them in plain lists.
        for name in ("data_fidelity", "prior"):
            if isinstance(module.__dict__.get(name), list):
                setattr(module, name, [_plain(part, done) for part in getattr(module, name)])
    return module


def _has_blocks(module: nn.Module) -> bool:
    return any(
        isinstance(part, (DistributedProcessing, DistributedDataFidelity, BaseOptim))
        or solver_class(plain_class(type(part))) is not type(part)
        for part in module.modules()
    )


def _fidelity(block: DistributedDataFidelity) -> DataFidelity:
    if block.terms.single is not None:
        return block.terms.single
    return StackedPhysicsDataFidelity(block.terms.modules())
