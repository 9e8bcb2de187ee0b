"""Which operators have a local form, and what it is: a registry that users extend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deepinv.physics import Physics

from shardinv.physics.space.local import Chain, LocalOperator

LocalForm = LocalOperator | Chain
Maker = Callable[[Any], LocalForm]
Twin = Callable[[Any, tuple[int, ...]], Physics]


class NotLocalError(ValueError):
    """An operator can't be computed on boxes with a halo; the message says why."""


@dataclass(frozen=True)
class Registration:
    """What is known of one class of operators.

    Parameters
    ----------
    kind
        The class.
    make
        ``make(operator)`` gives the local form, or raises :class:`NotLocalError`.
    twin
        ``twin(operator, shape)`` gives an operator of the same sort for a small image of shape
        ``(C, *spatial)``, for one that is tied to the size of its image; None for any size.
    """

    kind: type[Physics]
    make: Maker
    twin: Twin | None = None


_registered: dict[type[Physics], Registration] = {}


def register_local_form(
    kind: type[Physics], *, twin: Twin | None = None
) -> Callable[[Maker], Maker]:
    """Register the local form of a class of operators: a decorator.

    Subclasses that have the class's own ``A`` are meant as well. Before a form is used it is
    compared with the operator on a small image, so a wrong one raises.

    Parameters
    ----------
    kind
        The class of operators.
    twin
        ``twin(operator, shape)`` makes an operator of the same sort for a small image
        ``(C, *spatial)``; needed where operators are tied to the size of their image.

    Examples
    --------
    >>> import torch
    >>> from deepinv.physics import LinearPhysics
    >>> from shardinv.physics.space import LocalMultiplication
    >>> class Halving(LinearPhysics):
    ...     def A(self, x, **kwargs):
    ...         return x / 2
    ...     def A_adjoint(self, y, **kwargs):
    ...         return y / 2
    >>> @register_local_form(Halving)
    ... def halving(operator):
    ...     return LocalMultiplication(torch.tensor(0.5))
    >>> type(local_form(Halving())).__name__
    'LocalMultiplication'
    """

    def register(make: Maker) -> Maker:
        _registered[kind] = Registration(kind, make, twin)
        return make

    return register


def registration_of(operator: Physics) -> Registration:
    """The registration of an operator's class, or of the one it has its ``A`` from.

    Raises
    ------
    NotLocalError
        If there is none.
    """
    for kind in type(operator).__mro__:
        found = _registered.get(kind)
        if found is None:
            continue
        if getattr(type(operator), "A", None) is not getattr(kind, "A", None):
            raise NotLocalError(
                f"{type(operator).__name__} has an A of its own, other than {kind.__name__}'s: "
                "register its local form (register_local_form)"
            )
        return found
    raise NotLocalError(
        f"{type(operator).__name__} has no local form: its output may depend on the whole image. "
        "If it doesn't, register one (register_local_form)"
    )


def make_local_form(operator: Physics, verify: bool = True) -> LocalForm:
    """The local form of an operator.

    Parameters
    ----------
    operator
        An operator of one measurement.
    verify
        Compare the form with the operator on a small random image.

    Raises
    ------
    NotLocalError
        If it has none; the message says why.
    shardinv.physics.space.LocalFormError
        If the form is not the operator.
    """
    from shardinv.physics.space.verify import verify_local_form

    found = registration_of(operator)
    form = found.make(operator)
    if verify:
        verify_local_form(operator, form, found.make, found.twin)
    return form


def local_form(operator: Physics, verify: bool = True) -> LocalForm | None:
    """The local form of an operator, or None where it has none."""
    try:
        return make_local_form(operator, verify)
    except NotLocalError:
        return None


def chain_of(operators: Sequence[Physics], verify: bool = True) -> Chain:
    """The chain of operators that are applied one after the other, the first first."""
    return Chain.of([make_local_form(operator, verify) for operator in operators])
