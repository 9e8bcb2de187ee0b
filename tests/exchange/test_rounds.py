"""Moves in rounds, in parts of a channel each, and with work between start and end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from shardinv import DistributedContext, RankError
from shardinv.exchange import (
    TensorSpec,
    all_reduce,
    begin_fetch,
    crop,
    fetch,
    move,
    moving,
    start_move,
)
from shardinv.exchange.buffers import BufferPool
from shardinv.geometry import Box, Partition, Plan, plan_transfers
from tests.exchange.inputs import like_nccl, values
from tests.exchange.test_move import cases, halo_plan
from tests.harness import WORLD_SIZES, WorkerPool, assert_close, assert_every_rank_raised


@contextmanager
def a_message_for_each_channel() -> Iterator[None]:
    before, moving.APART = moving.APART, 8
    try:
        yield
    finally:
        moving.APART = before


def gather_plan(shape: tuple[int, ...], mesh: tuple[int, ...]) -> Plan:
    part = Partition.split(shape, mesh)
    everyone = ((Box.whole(shape),),) * part.ranks
    return plan_transfers(tuple((box,) for box in part.boxes), everyone)


def pieces_of(plan: Plan, rank: int, lead: tuple[int, ...], dtype: torch.dtype) -> list:
    return [
        values(rank, (*lead, *box.shape), dtype, seed=i) for i, box in enumerate(plan.sources[rank])
    ]


def check_rounds(ctx: DistributedContext, nccl: bool) -> None:
    comm = like_nccl(ctx.comm) if nccl else ctx.comm
    plans = {name: halo_plan(case)[0] for name, case in cases(ctx.world_size).items()}
    plans["a gather"] = gather_plan((13, 6), (ctx.world_size, 1))
    plans["a gather of columns"] = gather_plan((6, 13), (1, ctx.world_size))
    for name, forward in plans.items():
        for plan in (forward, forward.reversed):
            for lead, dtype in [
                ((), torch.float32),
                ((2, 3), torch.float32),
                ((0, 3), torch.float64),
            ]:
                pieces = pieces_of(plan, ctx.rank, lead, dtype)
                ctx.ledger.reset()
                at_once = move(comm, pieces, plan, lead, dtype)
                (told,) = ctx.ledger.entries() or [None]
                for in_flight in (8, 400):
                    ctx.ledger.reset()
                    in_rounds = start_move(
                        comm, pieces, plan, lead, dtype, in_flight=in_flight
                    ).finish()
                    what = f"{name}, {lead} {dtype}, {in_flight} bytes at once, rank {ctx.rank}"
                    assert_close(in_rounds, at_once, 0.0, what)
                    if told is not None:
                        (entry,) = ctx.ledger.entries()
                        assert (entry.calls, entry.bytes_sent) == (1, told.bytes_sent), what
                with a_message_for_each_channel():
                    apart = start_move(comm, pieces, plan, lead, dtype, in_flight=300).finish()
                assert_close(apart, at_once, 0.0, f"{name}, {lead} {dtype}, channels apart")


@pytest.mark.parametrize(
    ("world_size", "nccl"), [(1, False), (2, False), (3, False), (4, False), (2, True)]
)
def test_rounds_change_nothing(pool: WorkerPool, world_size: int, nccl: bool) -> None:
    pool.run(check_rounds, nccl, world_size=world_size)


class CountingPool(BufferPool):
    """Counts the bytes that are lent."""

    def __init__(self) -> None:
        super().__init__()
        self.lent = self.most = self.fresh = 0

    def take(self, nbytes: int, device: torch.device) -> torch.Tensor:
        kept = self.kept
        buffer = super().take(nbytes, device)
        self.fresh += self.kept == kept
        self.lent += buffer.numel()
        self.most = max(self.most, self.lent)
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        self.lent -= buffer.numel()
        super().give(buffer)


def check_memory(ctx: DistributedContext) -> None:
    comm = ctx.comm
    buffers, comm.buffers = comm.buffers, CountingPool()
    try:
        # Columns: nothing is contiguous, so all of it passes through buffers.
        plan = gather_plan((512, 512), (1, ctx.world_size))
        limit = 256 * 1024
        for each in (plan, plan.reversed):
            pieces = pieces_of(each, ctx.rank, (3,), torch.float32)
            for _ in range(2):
                comm.buffers.fresh = 0
                start_move(comm, pieces, each, (3,), torch.float32, in_flight=limit).finish()
                assert comm.buffers.lent == 0
            assert comm.buffers.most <= 1.3 * limit, f"{comm.buffers.most} bytes lent at once"
            assert comm.buffers.fresh == 0, "the second time all buffers are there"
        # Rows of a gather are sent from where they lie and received where they belong.
        comm.buffers = CountingPool()
        plan = gather_plan((1024, 512), (ctx.world_size, 1))
        pieces = pieces_of(plan, ctx.rank, (3,), torch.float32)
        whole = move(comm, pieces, plan, (3,), torch.float32)[0]
        assert comm.buffers.most == 0
        assert_close(crop(whole, plan.sources[ctx.rank][0]), pieces[0], 0.0)
    finally:
        comm.buffers = buffers


@pytest.mark.parametrize("world_size", [2, 4])
def test_messages_in_flight_are_bounded_and_their_memory_used_again(
    pool: WorkerPool, world_size: int
) -> None:
    pool.run(check_memory, world_size=world_size)


def check_work_in_between(ctx: DistributedContext) -> None:
    comm, ledger = ctx.comm, ctx.ledger
    plan, _ = halo_plan(((64, 8), (ctx.world_size, 1), (2, 0), (True, False)))
    back = plan.reversed
    (piece,) = pieces_of(plan, ctx.rank, (3,), torch.float64)
    (window,) = move(comm, [piece], plan, (3,), torch.float64)
    (summed,) = move(comm, [window], back, (3,), torch.float64)
    spec = TensorSpec((3,), torch.float64)
    ledger.reset()
    # Two under way at once, and a collective before their ends.
    with ledger.block("stencil"):
        first = begin_fetch(comm, [piece], plan, spec, "halo")
        second = begin_fetch(comm, [window], back, spec, "halo")
    all_reduce(comm, torch.ones(3))
    time.sleep(0.2)
    assert_close(first.finish(), [window], 0.0, "the first")
    assert_close(second.finish(), [summed], 0.0, "the second")
    assert second.finish()[0] is second.finish()[0]
    if comm.alone:
        return
    entry = next(e for e in ledger.entries() if e.block == "stencil")
    assert (entry.operation, entry.calls) == ("halo", 2)
    # What was done in between is neither issuing nor waiting.
    assert entry.seconds_issued + entry.seconds_waited < 0.2
    assert entry.seconds_issued > 0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_work_between_start_and_finish(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_work_in_between, world_size=world_size)


def check_waiting(ctx: DistributedContext) -> tuple[float, float]:
    plan, _ = halo_plan(((64, 8), (2, 1), (2, 0), (False, False)))
    pieces = pieces_of(plan, ctx.rank, (), torch.float32)
    ctx.barrier()
    ctx.ledger.reset()
    if ctx.rank == 1:
        time.sleep(0.4)
    handle = start_move(ctx.comm, pieces, plan, (), torch.float32)
    time.sleep(0.1)
    handle.finish()
    (entry,) = ctx.ledger.entries()
    return entry.seconds_issued, entry.seconds_waited


def test_waiting_for_a_slower_rank_is_waiting(pool: WorkerPool) -> None:
    (issued, waited), (_, slow) = pool.run(check_waiting)
    assert 0.2 < waited < 0.4
    assert issued < 0.2
    assert slow < 0.2


def check_dead_peer(ctx: DistributedContext, in_flight: int) -> None:
    plan = gather_plan((64, 64), (ctx.world_size, 1))
    (piece,) = pieces_of(plan, ctx.rank, (), torch.float32)
    store = ctx.comm.store
    if ctx.rank == 1:
        store.get("under way")
        # As a rank does that ends on an error: it says why, and its connections break.
        ctx.comm.failures.report(ValueError("no halo from me"))
        os._exit(1)
    handle = start_move(ctx.comm, [piece], plan, (), torch.float32, in_flight=in_flight)
    store.set("under way", "")
    try:
        handle.finish()
    except RankError as error:
        told = error
    with pytest.raises(RankError) as again:
        handle.finish()
    assert again.value is told
    raise told


@pytest.mark.parametrize("in_flight", [2**26, 4096])
def test_finish_tells_why_another_rank_failed(pool: WorkerPool, in_flight: int) -> None:
    survivor, _ = pool.run(check_dead_peer, in_flight, expect_error=True)
    told = "rank 1 failed:(.|\n)*no halo from me(.|\n)*rank 0, move of script was waiting"
    assert_every_rank_raised([survivor], RankError, told)


def check_gather_and_back(ctx: DistributedContext) -> int:
    """An image gathered for local use, and what each rank makes of it summed into the boxes."""
    comm, size, rank = ctx.comm, ctx.world_size, ctx.rank
    shape, channels = (150, 90), 3
    plan = gather_plan(shape, (size, 1))
    image = values(0, (channels, *shape), torch.float32)
    (box,) = plan.sources[rank]
    piece = crop(image, box).clone().requires_grad_()
    spec = TensorSpec((channels,), torch.float32)
    ctx.ledger.reset()
    with ctx.ledger.block("stack"):
        (whole,), token = fetch(comm, [piece], plan, spec, torch.zeros(()), "gather")
    assert_close(whole.detach(), image, 0.0, "gathered")
    weights = values(rank, (channels, *shape), torch.float32, seed=1)
    (mine,) = torch.autograd.grad((whole * weights).sum() + token, piece)
    reduced = {(e.block, e.operation): (e.calls, e.bytes_sent) for e in ctx.ledger.entries()}
    total = all_reduce(comm, weights.clone())
    assert_close(mine, crop(total, box), 0.0, "summed into the boxes")
    own, everything = 4 * channels * box.size, image.nbytes
    if size == 1:
        assert reduced == {}
        return 0
    assert reduced == {
        ("stack", "gather"): (1, (size - 1) * own),
        ("stack (backward)", "reduce_scatter"): (1, everything - own),
    }
    return everything - own


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_scatter_is_half_of_an_all_reduce(pool: WorkerPool, world_size: int) -> None:
    sent = pool.run(check_gather_and_back, world_size=world_size)
    of_all_reduce = 2 * (world_size - 1) * 4 * 3 * 150 * 90
    assert sum(sent) == of_all_reduce / 2


def check_names(ctx: DistributedContext) -> None:
    plan, _ = halo_plan(((8,), (ctx.world_size,), (1,), (False,)))
    spec = TensorSpec((), torch.float64)
    adjoints = {
        "halo": "halo",
        "realign": "realign",
        "move": "move",
        "gather": "reduce_scatter",
        "reduce_scatter": "gather",
    }
    for name, adjoint in adjoints.items():
        pieces = pieces_of(plan, ctx.rank, (), torch.float64)
        piece = pieces[0].requires_grad_()
        ctx.ledger.reset()
        (window,), token = fetch(ctx.comm, pieces, plan, spec, torch.zeros(()), name)
        (first,) = torch.autograd.grad((window**2).sum() + token, piece, create_graph=True)
        torch.autograd.grad(first.sum(), piece)
        booked = {e.operation for e in ctx.ledger.entries() if e.block == "script"}
        backward = {e.operation for e in ctx.ledger.entries() if e.block != "script"}
        if not ctx.comm.alone:
            assert booked == {name}
            # The second derivative goes both ways.
            assert backward == {name, adjoint}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_adjoints_are_booked_under_their_own_name(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_names, world_size=world_size)


def check_refusals(ctx: DistributedContext) -> None:
    plan, part = halo_plan(((8,), (ctx.world_size,), (1,), (False,)))
    spec = TensorSpec((), torch.float64)
    (piece,) = pieces_of(plan, ctx.rank, (), torch.float64)
    with pytest.raises(RuntimeError, match="begin_fetch keeps no gradient"):
        begin_fetch(ctx.comm, [piece.clone().requires_grad_()], plan, spec)
    with torch.no_grad():
        begin_fetch(ctx.comm, [piece.clone().requires_grad_()], plan, spec).finish()
    shape = part.boxes[ctx.rank].shape
    for wrong in ([], [piece, piece], [piece[None]], [piece[:-1]]):
        complaint = rf"rank {ctx.rank} is to send boxes of shapes \[\({shape[0]},\)\], got"
        with pytest.raises(ValueError, match=complaint):
            move(ctx.comm, wrong, plan, (), torch.float64)


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_and_wrong_shapes_are_refused(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_refusals, world_size=world_size)
