"""Values picked by a sharded mask: each rank holds those of its box, in one vector.

They combine with others picked by the same mask, can be reduced, and can be written back. Their
order in the whole image is known to no rank, so they have no place in it: no gather, no crop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from shardinv.exchange import all_reduce
from shardinv.geometry import Box, Partition
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import local_part
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.sharded import ShardedTensor, refresh
from shardinv.tensor.sharding import Sharding

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Selection(Sharding):
    """How many values of a mask each rank holds.

    Parameters
    ----------
    mask
        The mask.
    """

    mask: ShardedTensor | None = None

    @property
    def layout(self) -> NoReturn:
        """Refused: the values have no place in the image."""
        raise UnsupportedOperation(
            "values picked by a sharded mask have no place in the image: write them back "
            "(x[mask] = values), reduce them, or gather the image before picking (ctx.gather(x))"
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Selection) or self.partition != other.partition:
            return False
        assert self.mask is not None
        assert other.mask is not None
        # Collective, where the partitions agree, which all ranks know.
        return self.mask is other.mask or bool(torch.equal(self.mask, other.mask))

    def __hash__(self) -> int:
        return hash(self.partition)

    def __str__(self) -> str:
        return f"{self.shape[0]} values picked by a mask"


def select(function: Function, x: ShardedTensor, mask: ShardedTensor) -> ShardedTensor:
    """The values where a mask of the same shape is true. One all-reduce of a number per rank."""
    _check(function, x, mask)
    here = local_part(function, mask, x)
    return ShardedTensor(x.to_local()[here], _selection(x, mask, here))


def write(function: Function, x: ShardedTensor, mask: ShardedTensor, value: ShardedTensor) -> None:
    """Write values picked by the same mask where they came from."""
    _check(function, x, mask)
    here = local_part(function, mask, x)
    if value.sharding != _selection(x, mask, here):
        raise LayoutError(
            f"values to be written where a mask is true must be picked by that mask; got "
            f"{value.sharding}"
        )
    x.to_local()[here] = value.to_local()
    refresh(x)


@rule(*named("masked_select", torch, torch.Tensor))
def masked_select(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The values where a mask is true."""
    x, mask = [*args, *kwargs.values()][:2]
    if not isinstance(x, ShardedTensor) or not isinstance(mask, ShardedTensor):
        raise LayoutError("masked_select of a sharded and a replicated tensor: shard both")
    return select(function, x, mask)


def _check(function: Function, x: ShardedTensor, mask: ShardedTensor) -> None:
    if mask.dtype != torch.bool:
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded tensor by sharded {mask.dtype} numbers: a mask of "
            "bool is possible"
        )
    if tuple(mask.shape) != tuple(x.shape):
        raise IndexError(
            f"the mask of shape {tuple(mask.shape)} does not match the tensor {tuple(x.shape)}"
        )


def _selection(x: ShardedTensor, mask: ShardedTensor, here: torch.Tensor) -> Selection:
    comm = x.sharding.comm
    counts = torch.zeros(comm.size, dtype=torch.int64, device=here.device)
    counts[comm.rank] = here.sum()
    ends = all_reduce(comm, counts).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    boxes = tuple(Box((a,), (b,)) for a, b in zip(starts, ends, strict=True))
    return Selection(comm, Partition((ends[-1],), boxes), (comm.size,), mask=mask)
