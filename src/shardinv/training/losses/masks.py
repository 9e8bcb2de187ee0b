"""The mask of an operator by space, where splitting looks for it."""

from __future__ import annotations

import copy
from typing import Any

import torch

from shardinv.physics import DistributedLocalPhysics
from shardinv.physics.space.pointwise import LocalMultiplication
from shardinv.tensor import ShardedTensor, scatter
from shardinv.training.losses.transforms import whole


def masked(physics: Any, y: Any) -> Any:
    """A mask by space with its mask where splitting looks for it: whole, in ``physics.mask``."""
    if not isinstance(physics, DistributedLocalPhysics) or hasattr(physics, "mask"):
        return physics
    stages = physics.branch.chain.stages
    if len(stages) != 1 or not isinstance(stages[0], LocalMultiplication):
        return physics
    if not stages[0].masks_noise:
        return physics
    twin = copy.copy(physics)
    mask = stages[0].mask
    with torch.no_grad():
        ones = torch.ones(*stages[0].lead, *y.shape[2:], dtype=mask.dtype, device=mask.device)
        if isinstance(y, ShardedTensor):  # so that the layout of images stays what it is
            ones = scatter(ones, y.sharding)
        object.__setattr__(twin, "mask", whole(twin.A(ones)))
    return twin
