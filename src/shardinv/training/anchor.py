"""Recomputing a part of a program that has collectives in it.

``torch.utils.checkpoint`` computes anew when the backward pass first asks for something that the
part would have kept. Which operation asks first differs between a rank with tiles and one without,
and then their collectives would meet in different orders. So the part ends in an anchor: on every
rank it is the first to ask, and the last to be computed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from shardinv.tensor import ShardedTensor

Output = TypeVar("Output")


def recompute_together(function: Callable[..., Output], *args: Any, **kwargs: Any) -> Output:
    """Call a function and keep its arguments only; the backward pass calls it again, on all ranks.

    Parameters
    ----------
    function
        What every rank calls alike. What it returns may be nested; tensors that need a gradient
        come from its arguments, or from tensors that it closes over.
    *args, **kwargs
        Of it.
    """

    def anchored(*inputs: Any, **named: Any) -> Output:
        leaves, structure = tree_flatten(function(*inputs, **named), is_leaf=_is_tensor)
        places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf) and leaf.requires_grad]
        local = [_local(leaves[place]) for place in places]
        if local:
            for place, tensor in zip(places, _Anchor.apply(*local), strict=True):
                leaf = leaves[place]
                leaves[place] = leaf.like(tensor) if isinstance(leaf, ShardedTensor) else tensor
        return tree_unflatten(leaves, structure)

    return checkpoint(anchored, *args, use_reentrant=False, **kwargs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, ShardedTensor) else tensor


class _Anchor(torch.autograd.Function):
    @staticmethod
    def forward(*tensors: torch.Tensor) -> Any:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0].new_zeros(()))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        _ = ctx.saved_tensors  # computes the part anew
        return cotangents
