"""Checks of what a user hands to a block; each error is raised on every rank, or reaches it."""

from __future__ import annotations

from typing import Any

import torch

from shardinv.context import DistributedContext
from shardinv.exchange import FirstUse, TensorSpec
from shardinv.tensor import LayoutError, ShardedTensor


def check_image(
    ctx: DistributedContext, first_use: FirstUse, x: Any, what: str = "the image"
) -> TensorSpec:
    """Check an image's kind, and at first use that all ranks have the same.

    Parameters
    ----------
    ctx
        The ranks. In debug mode the image's values are compared as well, at every call.
    first_use
        Remembers the kinds that have been compared.
    x
        The image, ``(B, C, *spatial)``.
    what
        What it is, in words, for errors.

    Raises
    ------
    TypeError
        If it is no tensor.
    ValueError
        If it is on another device than this rank's.
    LayoutError
        If it is sharded over other ranks, or flattened.
    DisagreementError
        If another rank's has another shape, type, layout, or need of a gradient.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{what} must be a tensor (B, C, *spatial), got a {type(x).__name__}")
    if x.device != ctx.device:
        raise ValueError(
            f"{what} is on {x.device}, rank {ctx.rank} works on {ctx.device}: "
            "move it with x.to(ctx.device)"
        )
    spec = TensorSpec.of(x)
    layout = "replicated"
    if isinstance(x, ShardedTensor):
        if x.sharding.comm is not ctx.comm:
            raise LayoutError(
                f"{what} is sharded over other ranks than the block's: {x.sharding.comm.size} "
                f"ranks, {x.sharding}; the block works with {ctx.comm.size} ranks"
            )
        if x.folded is not None or x.trailing:
            raise LayoutError(
                f"{what} must have axes (B, C, *spatial), of which the spatial ones are cut; got "
                f"shape {tuple(x.shape)} of an image of {x.sharding.shape} px"
            )
        layout = str(x.sharding)
    first_use.same(
        f"the shape, type, layout and need of a gradient of {what}",
        (spec.shape, str(spec.dtype), layout, bool(x.requires_grad and torch.is_grad_enabled())),
        "They must be the same on every rank",
    )
    if ctx.debug and not ctx.comm.alone and not isinstance(x, ShardedTensor):
        check_values(
            ctx,
            what,
            x,
            hint="A replicated image must be the same on every rank: draw random numbers with the "
            "same seed (DistributedContext(seed=..., seed_offset=False)) or broadcast it "
            "(ctx.broadcast(x))",
        )
    return spec


def check_values(
    ctx: DistributedContext,
    what: str,
    *tensors: torch.Tensor,
    hint: str = "They must be the same on every rank",
) -> None:
    """Compare the values of tensors between ranks, by their sums: for the debug mode, it is slow.

    Raises
    ------
    DisagreementError
        If another rank's have another sum, or another sum of magnitudes, to nine digits.
    """
    total = torch.zeros(2, dtype=torch.float64, device=ctx.device)
    for tensor in tensors:
        values = tensor.detach().resolve_conj()
        values = (torch.view_as_real(values) if values.is_complex() else values).double()
        total += torch.stack([values.sum(), values.abs().sum()]).to(total.device)
    ctx.check_same(
        f"the sum and absolute sum of the values of {what}",
        tuple(f"{number:.9e}" for number in total.tolist()),
        hint,
    )
