"""What a call hands to every term besides image and measurement: replicated tensors, for local use.

A noise level or a weight that is trained is the same on every rank, and each rank uses it for its
own operators: its gradient is the sum of what it gets there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shardinv.exchange import Communicator, FirstUse, TensorSpec, fan_out
from shardinv.tensor import ShardedTensor


def hand_over(
    comm: Communicator, first_use: FirstUse, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]:
    """Arguments for this rank's terms, and the token that ties them to the end of the local work.

    Parameters
    ----------
    comm
        The group.
    first_use
        Compares between the ranks which tensors need a gradient.
    args, kwargs
        The arguments; tensors directly among them are handed over.

    Raises
    ------
    DisagreementError
        If another rank's tensors have other shapes, types, or needs of a gradient.
    """
    named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    tensors = {
        name: value
        for name, value in named.items()
        if isinstance(value, torch.Tensor) and not isinstance(value, ShardedTensor)
    }
    if not tensors:
        return tuple(args), dict(kwargs), torch.zeros((), device=comm.device)
    grad = torch.is_grad_enabled()
    first_use.same(
        "the shapes and types of tensors given to a fidelity, and which need a gradient",
        tuple((n, TensorSpec.of(t), grad and t.requires_grad) for n, t in tensors.items()),
        "They must be the same on every rank",
    )
    local, token = fan_out(comm, *tensors.values())
    named.update(zip(tensors, local, strict=True))
    handed = tuple(named[number] for number in range(len(args)))
    return handed, {name: named[name] for name in kwargs}, token
