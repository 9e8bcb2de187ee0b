"""The axes of a sharded tensor: which are cut, which are held whole.

Used by the rules that reduce over axes, index them or rearrange them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.registry import name_of
from shardinv.tensor.sharded import ShardedTensor


def cut_axes(x: ShardedTensor) -> tuple[int, ...]:
    """The axes that lie across the ranks: the spatial ones, or the one they were folded into."""
    if x.folded is not None:
        return (x.ndim - 1,)
    end = x.ndim - x.trailing
    return tuple(range(end - x.sharding.ndim, end))


def normalise(dims: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes as increasing numbers from 0; None and the empty tuple are all axes.

    Raises
    ------
    IndexError
        If one is out of range.
    """
    if dims is None:
        return tuple(range(ndim))
    listed = (dims,) if isinstance(dims, int) else tuple(dims)
    for dim in listed:
        if not -ndim <= dim < ndim:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but "
                f"got {dim})"
            )
    return tuple(sorted(dim % ndim for dim in listed)) or tuple(range(ndim))


def reduces_over_ranks(
    function: Callable[..., Any], x: ShardedTensor, dims: tuple[int, ...]
) -> bool:
    """Whether a reduction over axes crosses the ranks (True) or stays in each box (False).

    Raises
    ------
    UnsupportedOperation
        If it is over some of the cut axes only: the result would lie on some ranks only.
    """
    cut = set(cut_axes(x))
    crossed = cut & set(dims)
    if crossed and crossed != cut:
        raise UnsupportedOperation(
            f"{name_of(function)} over axes {dims} of a sharded image {tuple(x.shape)}: a "
            f"reduction is over all spatial axes {tuple(sorted(cut))}, or over none. Gather the "
            "image first (ctx.gather(x))"
        )
    return bool(crossed)
