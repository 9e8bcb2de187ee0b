"""Pixels moved between boxes of the ranks: halos, corners, wrapped axes, and back."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from shardinv import DistributedContext
from shardinv.exchange import crop, move
from shardinv.geometry import Box, Partition, Plan, plan_transfers
from tests.exchange.inputs import DTYPES, values
from tests.harness import WORLD_SIZES, WorkerPool, assert_close

Case = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[bool, ...]]


def cases(ranks: int) -> dict[str, Case]:
    """Shape, mesh, halo and which axes wrap."""
    found: dict[str, Case] = {
        "rows": ((9,), (ranks,), (2,), (False,)),
        "rows that wrap": ((9,), (ranks,), (2,), (True,)),
        "a halo from several neighbours": ((8,), (ranks,), (5,), (False,)),
        "a halo wider than the image, wrapped": ((5,), (ranks,), (7,), (True,)),
        "bands": ((7, 6), (ranks, 1), (1, 2), (False, False)),
        "columns, wrapped both ways": ((6, 9), (1, ranks), (1, 2), (True, True)),
        "fewer rows than ranks": ((2, 4), (ranks, 1), (1, 1), (True, False)),
        "a volume": ((4, 6, 5), (1, ranks, 1), (1, 1, 2), (False, True, False)),
        "no halo": ((6, 4), (ranks, 1), (0, 0), (False, False)),
    }
    if ranks == 4:
        found["corners of a mesh"] = ((7, 8), (2, 2), (2, 1), (False, False))
        found["corners of a mesh, wrapped"] = ((7, 8), (2, 2), (2, 3), (True, True))
        found["corners of a volume"] = ((4, 5, 6), (2, 1, 2), (1, 2, 1), (False, False, True))
    return found


def halo_plan(case: Case) -> tuple[Plan, Partition]:
    shape, mesh, halo, periodic = case
    part = Partition.split(shape, mesh)
    windows = part.windows(halo, periodic)
    periods = tuple(n if wrap else None for n, wrap in zip(shape, periodic, strict=True))
    sources = tuple((box,) for box in part.boxes)
    return plan_transfers(sources, tuple((window,) for window in windows), periods), part


def padded(image: Tensor, case: Case) -> Tensor:
    """The whole image with its margin: wrapped, or zeros."""
    shape, _, halo, periodic = case
    for axis in range(len(shape)):
        dim = image.ndim - len(shape) + axis
        if periodic[axis]:
            index = torch.arange(-halo[axis], shape[axis] + halo[axis]) % shape[axis]
            image = image.index_select(dim, index)
        else:
            margin = [0, 0] * (image.ndim - 1 - dim) + [halo[axis], halo[axis]]
            image = pad(image, margin)
    return image


def check_halos(ctx: DistributedContext) -> None:
    for name, case in cases(ctx.world_size).items():
        plan, part = halo_plan(case)
        for lead, dtype in [((), torch.float64), ((2, 1), torch.float32), ((3,), torch.complex64)]:
            image = values(0, (*lead, *part.shape), dtype)
            piece = crop(image, part.boxes[ctx.rank])  # a view: not contiguous for columns
            (result,) = move(ctx.comm, [piece], plan, lead, dtype)
            origin = Box.whole(part.shape).grow(case[2])
            window = plan.targets[ctx.rank][0]
            expected = crop(padded(image, case), window, origin)
            if window.is_empty:
                expected = image.new_zeros((*lead, *window.shape))
            assert_close(result, expected, 0.0, f"{name}, {lead} {dtype}, rank {ctx.rank}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_halos_are_crops_of_the_padded_image(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_halos, world_size=world_size)


def check_way_back(ctx: DistributedContext) -> None:
    """Every pixel gets back as many ones as there are copies of it."""
    for name, case in cases(ctx.world_size).items():
        plan, part = halo_plan(case)
        ones = [torch.ones(box.shape, dtype=torch.float64) for box in plan.targets[ctx.rank]]
        (result,) = move(ctx.comm, ones, plan.reversed, (), torch.float64)
        copies = torch.zeros(part.shape, dtype=torch.float64)
        for transfer in plan.transfers:
            copies[transfer.source_box.slices()] += 1
        assert_close(result, crop(copies, part.boxes[ctx.rank]).contiguous(), 0.0, name)
        assert copies.sum() <= sum(box.size for (box,) in plan.targets)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_way_back_adds_where_boxes_overlap(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_way_back, world_size=world_size)


def check_general_layouts(ctx: DistributedContext) -> None:
    """Several boxes on some ranks and none on others, of every type, with conjugated pieces."""
    size, rank = ctx.world_size, ctx.rank
    tiles = Partition.split((6, 6), (2, 3)).boxes
    sources = tuple(tiles if owner == size - 1 else () for owner in range(size))
    wanted = (Box((0, 0), (6, 6)), Box((-1, 2), (3, 9)), Box((3, 3), (3, 5)))
    targets = tuple(wanted if owner % 2 == 0 else () for owner in range(size))
    plan = plan_transfers(sources, targets)
    for dtype in DTYPES:
        image = values(0, (2, 6, 6), dtype)
        pieces = [crop(image, box) for box in sources[rank]]
        if dtype.is_complex:
            pieces = [piece.contiguous().conj() for piece in pieces]
        got = move(ctx.comm, pieces, plan, (2,), dtype)
        large = pad(image.conj().resolve_conj() if dtype.is_complex else image, [0, 3, 1, 0])
        expected = [
            crop(large, box, Box((-1, 0), (6, 9))) if box.size else image[:, :0, :2]
            for box in targets[rank]
        ]
        assert_close(got, expected, 0.0, f"{dtype}, rank {rank}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_any_boxes_of_any_type(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_general_layouts, world_size=world_size)


def check_single_conjugated_piece(ctx: DistributedContext) -> None:
    # The one block of a message is sent from where it lies, unless it is conjugated lazily.
    boxes = Partition.split((2 * ctx.world_size,), (ctx.world_size,)).boxes
    sources = tuple((box,) for box in boxes)
    plan = plan_transfers(sources, sources[1:] + sources[:1])
    image = values(0, (2 * ctx.world_size,), torch.complex128)
    (got,) = move(ctx.comm, [image[boxes[ctx.rank].slices()].conj()], plan, (), image.dtype)
    wanted = boxes[(ctx.rank + 1) % ctx.world_size]
    assert_close(got, image.conj().resolve_conj()[wanted.slices()], 0.0)
    assert prod(got.shape) == 2


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_piece_that_is_conjugated_lazily(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_single_conjugated_piece, world_size=world_size)
