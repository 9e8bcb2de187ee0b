"""The table of rules: what each function of torch does with a sharded tensor.

A function without a rule is refused by name. Rules of one family live in one module of ``rules``;
a user adds one with :func:`rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.overrides import resolve_name

from shardinv.tensor.errors import UnsupportedOperation

Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_rules: dict[Callable[..., Any], Rule] = {}


def rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Say what functions of torch do with sharded tensors.

    Parameters
    ----------
    *functions
        As ``__torch_function__`` sees them: ``torch.add``, ``torch.Tensor.add``,
        ``torch.nn.functional.relu``.

    Returns
    -------
    callable
        A decorator for ``fn(function, args, kwargs)``, which computes the result from arguments at
        least one of which is (or holds) a :class:`~shardinv.tensor.ShardedTensor`.

    Examples
    --------
    >>> import torch
    >>> from shardinv.tensor import rule
    >>> from shardinv.tensor.rules.pointwise import pointwise
    >>> _ = rule(torch.special.bessel_j0)(pointwise)
    """

    def register(fn: Rule) -> Rule:
        for function in functions:
            _rules[function] = fn
        return fn

    return register


def named(names: str | Iterable[str], *holders: Any) -> list[Callable[..., Any]]:
    """The functions of the given names that the holders have (torch, torch.Tensor, …)."""
    names = names.split() if isinstance(names, str) else names
    return [getattr(holder, name) for name in names for holder in holders if hasattr(holder, name)]


def apply_rule(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what the table says.

    Raises
    ------
    UnsupportedOperation
        If the table says nothing.
    """
    found = _rules.get(function)
    if found is None:
        raise UnsupportedOperation(
            f"{name_of(function)} has no rule for sharded tensors. Gather the image first "
            "(ctx.gather(x)), run the part as a distributed block, or add a rule with "
            "shardinv.tensor.rule"
        )
    try:
        return found(function, args, kwargs)
    except TypeError as error:
        # Python would take a TypeError of an operator's for "ask the other operand", and lose it.
        if not getattr(function, "__name__", "").startswith("__"):
            raise
        raise UnsupportedOperation(f"{name_of(function)} of a sharded tensor: {error}") from error


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function of torch as users know it."""
    found = resolve_name(function)
    if found is None:
        found = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(found or function).removesuffix(".__get__")
