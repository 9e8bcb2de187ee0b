"""Boxes and lists of tensors brought to every rank, by sends and by one collective."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shardinv import DistributedContext
from shardinv.exchange import TensorSpec, gather_boxes, gather_tensors
from shardinv.geometry import Box, Layout, Partition
from tests.exchange.inputs import DTYPES, like_nccl, values
from tests.harness import WORLD_SIZES, WorkerPool, assert_close

both_ways = pytest.mark.parametrize("nccl", [False, True], ids=["sends", "collective"])


def layouts(ranks: int) -> dict[str, tuple[tuple[int, ...], Layout]]:
    """Shapes and who holds which of their boxes."""
    bands = Partition.split((7, 5), (ranks, 1)).boxes
    columns = Partition.split((4, 9), (1, ranks)).boxes
    volume = Partition.split((3, 4, 5), (1, ranks, 1)).boxes
    tiles = Partition.split((6, 6), (3, 3)).boxes
    return {
        "bands of uneven height": ((7, 5), tuple((box,) for box in bands)),
        "columns, not contiguous": ((4, 9), tuple((box,) for box in columns)),
        "a volume": ((3, 4, 5), tuple((box,) for box in volume)),
        "several boxes a rank": ((6, 6), tuple(tiles[rank::ranks] for rank in range(ranks))),
        "everything on the last rank": (
            (4, 4),
            (*((),) * (ranks - 1), (Box((0, 0), (1, 4)), Box((1, 0), (4, 4)))),
        ),
        "fewer rows than ranks": (
            (2, 3),
            tuple((box,) for box in Partition.split((2, 3), (ranks, 1)).boxes),
        ),
        "nothing at all": ((4,), tuple((Box((2,), (2,)),) for _ in range(ranks))),
        "pixels left out": (
            (5, 5),
            tuple((Box((rank, 1), (rank + 1, 3)),) for rank in range(ranks)),
        ),
    }


def check_boxes(ctx: DistributedContext, nccl: bool) -> None:
    comm = like_nccl(ctx.comm) if nccl else ctx.comm
    for name, (shape, layout) in layouts(comm.size).items():
        for lead in ((), (2, 3)):
            for dtype in DTYPES:
                full = values(0, (*lead, *shape), dtype)
                untouched = values(1, (*lead, *shape), dtype)
                whole, expected = untouched.clone(), untouched.clone()
                for rank, boxes in enumerate(layout):
                    for box in boxes:
                        region = (..., *box.slices())
                        expected[region] = full[region]
                        if rank == comm.rank:
                            whole[region] = full[region]
                result = gather_boxes(comm, whole, layout)
                assert_close(result, expected, 0.0, f"{name}, {lead} {dtype}")
                assert result is whole


@both_ways
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_boxes(pool: WorkerPool, world_size: int, nccl: bool) -> None:
    pool.run(check_boxes, nccl, world_size=world_size)


def lists(ranks: int) -> dict[str, list[list[TensorSpec]]]:
    """What each rank brings."""
    mixed = [
        TensorSpec((2, 3), torch.float32),
        TensorSpec((5,), torch.bool),
        TensorSpec((3,), torch.complex128),
        TensorSpec((), torch.float64),
        TensorSpec((0, 4), torch.float16),
        TensorSpec((1, 7), torch.uint8),
        TensorSpec((), torch.bfloat16),
        TensorSpec((2, 2, 2), torch.int64),
    ]
    return {
        "the same on every rank": [list(mixed) for _ in range(ranks)],
        "dealt in turn": [mixed[rank::ranks] for rank in range(ranks)],
        "nothing but on rank 0": [mixed, *([] for _ in range(ranks - 1))],
        "empty tensors only, on one rank": [
            [TensorSpec((0, 4), torch.float32)] if rank == ranks - 1 else mixed[:3]
            for rank in range(ranks)
        ],
        "empty tensors only": [[TensorSpec((0,), torch.float32)] for _ in range(ranks)],
        "nothing": [[] for _ in range(ranks)],
    }


def awkward(tensor: Tensor) -> Tensor:
    """The same values, not contiguous where there are axes to swap."""
    if tensor.is_complex():
        return tensor.conj().clone().conj()
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim > 1 else tensor


def check_lists(ctx: DistributedContext, nccl: bool) -> None:
    comm = like_nccl(ctx.comm) if nccl else ctx.comm
    for name, specs in lists(comm.size).items():
        for change in (lambda tensor: tensor, awkward):
            everything = [
                [values(rank, s.shape, s.dtype, seed) for seed, s in enumerate(own)]
                for rank, own in enumerate(specs)
            ]
            mine = [change(tensor) for tensor in everything[comm.rank]]
            gathered = gather_tensors(comm, mine, specs)
            assert len(gathered) == comm.size
            assert_close(gathered, everything, 0.0, name)
            assert all(a is b for a, b in zip(gathered[comm.rank], mine, strict=True)), name


@both_ways
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_tensors_of_any_shape_and_type(pool: WorkerPool, world_size: int, nccl: bool) -> None:
    pool.run(check_lists, nccl, world_size=world_size)
