"""Adding up what operators give, one after the other, so that few of them are in memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def add_up(parts: Iterable[torch.Tensor]) -> tuple[torch.Tensor | None, bool]:
    """The sum of tensors as they come, for instance from a generator.

    Returns
    -------
    torch.Tensor or None
        The sum; None of no parts.
    bool
        Whether the sum is a tensor of its own, which may be written to. A single part is given
        back as it is, and may be somebody's.
    """
    total: torch.Tensor | None = None
    owned = False
    for part in parts:
        if total is None:
            total = part
        elif owned and _adds_in_place(total, part):
            total += part
        else:
            total = total + part
            owned = True
        # Or it would be in memory while the next one is made.
        del part
    return total, owned


def _adds_in_place(total: torch.Tensor, part: torch.Tensor) -> bool:
    """Whether ``total += part`` gives what ``total + part`` does."""
    return (
        not total.requires_grad
        and not part.requires_grad
        and total.shape == part.shape
        and torch.result_type(total, part) == total.dtype
    )
