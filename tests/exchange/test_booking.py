"""What the ledger says of each operation, against the formulas and the kernel's own counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardinv import DistributedContext
from shardinv.exchange import (
    TensorSpec,
    all_reduce,
    assemble,
    barrier,
    broadcast,
    broadcast_tensors,
    fan_out,
    fetch,
    gather_boxes,
    gather_list,
    gather_tensors,
    move,
    sum_over_ranks,
)
from shardinv.exchange.collectives import SMALL
from shardinv.geometry import Box, Layout, Partition, plan_transfers
from tests.exchange.inputs import like_nccl
from tests.harness import WORLD_SIZES, WorkerPool

Booked = dict[tuple[str, str], tuple[int, int]]


def booked(ctx: DistributedContext, call: Callable[[], Any]) -> Booked:
    """Return (calls, bytes) by (block, operation) of what ``call`` books."""
    ctx.ledger.reset()
    call()
    return {(e.block, e.operation): (e.calls, e.bytes_sent) for e in ctx.ledger.entries()}


def bands(shape: tuple[int, ...], ranks: int) -> Layout:
    boxes = Partition.split(shape, (ranks, *(1,) * (len(shape) - 1))).boxes
    return tuple((box,) for box in boxes)


def check_formulas(ctx: DistributedContext, nccl: bool) -> None:
    comm = like_nccl(ctx.comm) if nccl else ctx.comm
    size, rank = comm.size, comm.rank

    def expect(call: Callable[[], Any], operation: str, nbytes: int) -> None:
        found = booked(ctx, call)
        assert found == ({} if size == 1 else {("script", operation): (1, nbytes)})

    for numbers, dtype in [(7, torch.float32), (SMALL, torch.float64), (5, torch.complex128)]:
        tensor = torch.ones(numbers, dtype=dtype)
        nbytes = numbers * dtype.itemsize
        for op in ("sum", "mean"):
            expect(
                lambda t=tensor, o=op: all_reduce(comm, t, o),
                "all_reduce",
                2 * (size - 1) * nbytes // size,
            )
    # An image of 3 channels, 7 rows, 10 columns: uneven bands, empty ones where ranks are many.
    for shape in ((7, 10), (2, 10)):
        whole = torch.ones(3, *shape, dtype=torch.float16)
        expect(
            lambda w=whole, s=shape: gather_boxes(comm, w, bands(s, size)),
            "gather",
            (size - 1) * whole.nbytes // size,
        )
    # Every rank brings 3 bytes and, if odd, 5 doubles.
    tensors = [torch.ones(3, dtype=torch.bool)] + [torch.ones(5, dtype=torch.float64)] * (rank % 2)
    specs = [
        [TensorSpec((3,), torch.bool)] + [TensorSpec((5,), torch.float64)] * (r % 2)
        for r in range(size)
    ]
    useful = 3 * size + 40 * (size // 2)
    expect(lambda: gather_tensors(comm, tensors, specs), "gather", (size - 1) * useful // size)
    # A halo of one row of 10 float32 to each neighbour.
    held = bands((8, 10), size)
    windows = tuple((box.grow((1, 0)) & Box.whole((8, 10)),) for (box,) in held)
    piece = torch.ones(held[rank][0].shape)
    neighbours = (rank > 0) + (rank < size - 1)
    expect(
        lambda: move(comm, [piece], plan_transfers(held, windows), (), torch.float32),
        "move",
        40 * neighbours,
    )
    source = size - 1
    at_source = 24 if rank == source else 0
    expect(lambda: broadcast(comm, torch.ones(6), source), "broadcast", at_source)
    expect(
        lambda: broadcast_tensors(comm, [torch.ones(5), torch.ones(4, dtype=torch.bool)], source),
        "broadcast",
        at_source,
    )
    expect(lambda: barrier(comm), "barrier", 0)


@pytest.mark.parametrize("nccl", [False, True], ids=["gloo", "like nccl"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_bytes_are_those_of_the_best_algorithm(
    pool: WorkerPool, world_size: int, nccl: bool
) -> None:
    pool.run(check_formulas, nccl, world_size=world_size)


def check_verbs(ctx: DistributedContext) -> None:
    comm, ledger = ctx.comm, ctx.ledger
    size, rank = comm.size, comm.rank
    shape = (8, 10)
    layout = bands(shape, size)
    windows = tuple((box.grow((1, 0)) & Box.whole(shape),) for (box,) in layout)
    plan = plan_transfers(layout, windows)
    (box,) = layout[rank]
    spec, lead = TensorSpec(shape, torch.float64), TensorSpec((), torch.float64)
    single = TensorSpec(shape, torch.float32)
    lists = [[spec]] * size
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    w = torch.randn(shape, requires_grad=True)
    reduce64, reduce_two, reduce32 = (
        2 * (size - 1) * n // size for n in (spec.nbytes, 2 * spec.nbytes, single.nbytes)
    )
    gather = (size - 1) * spec.nbytes // size
    # Forward each sends its edge rows, backward it sends back those it got: as many.
    edges = 80 * ((rank > 0) + (rank < size - 1))

    def run(name: str) -> Booked:
        def call() -> None:
            with ledger.block("block"):
                (local, other), token = fan_out(comm, x, w if name == "two types" else x)
                if name == "assemble":
                    out = assemble(comm, [local[box.slices()] ** 2], layout, spec, token)
                elif name == "gather_list":
                    out = torch.stack(gather_list(comm, [local**2], lists, token))
                elif name == "fetch":
                    held, token = fetch(comm, [local[box.slices()]], plan, lead, token)
                    inner = box.slices(windows[rank][0])
                    out = assemble(comm, [held[0][inner] ** 2], layout, spec, token)
                else:
                    out = sum_over_ranks(comm, local**2 + other, token)
            inputs = [x, w] if name == "two types" else [x]
            torch.autograd.grad(out.sum(), inputs)

        return booked(ctx, call)

    expected: dict[str, Booked] = {
        # fan_out(x, x): one reduction for both arguments, which have one type.
        "sum": {
            ("block", "all_reduce"): (1, reduce64),
            ("block (backward)", "all_reduce"): (1, reduce_two),
        },
        "two types": {
            ("block", "all_reduce"): (1, reduce64),
            ("block (backward)", "all_reduce"): (2, reduce64 + reduce32),
        },
        "assemble": {
            ("block", "gather"): (1, gather),
            ("block (backward)", "all_reduce"): (1, reduce_two),
        },
        "gather_list": {
            ("block", "gather"): (1, (size - 1) * spec.nbytes),
            ("block (backward)", "all_reduce"): (1, reduce_two),
        },
        "fetch": {
            ("block", "move"): (1, edges),
            ("block", "gather"): (1, gather),
            ("block (backward)", "move"): (1, edges),
            ("block (backward)", "all_reduce"): (1, reduce_two),
        },
    }
    # At the end of a backward pass: the extremes of eighteen numbers, in one message.
    agreement = {("agreement (backward)", "all_reduce"): (1, 2 * (size - 1) * 288 // size)}
    for name, booking in expected.items():
        found = run(name)
        booking = {**booking, **agreement}
        assert found == ({} if size == 1 else booking), name
        assert ledger.current_block == "script"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_verbs_and_their_backwards_send_no_more_than_they_must(
    pool: WorkerPool, world_size: int
) -> None:
    pool.run(check_verbs, world_size=world_size)


def check_seconds(ctx: DistributedContext) -> list[dict[str, Any]]:
    if ctx.rank == 0:
        time.sleep(0.3)
    ctx.barrier()
    return ctx.ledger.table()


def test_wait_for_a_slower_rank_is_waiting_not_issuing(pool: WorkerPool) -> None:
    slow, quick = (rows[0] for rows in pool.run(check_seconds))
    assert quick["seconds_waited"] >= 0.2
    assert quick["seconds_issued"] < quick["seconds_waited"]
    assert slow["seconds_waited"] < 0.2


COUNTERS = Path("/proc/net/dev")
NUMBERS = 4 * 1024 * 1024
"""Of float32: messages of 16 MiB."""


def bytes_received_on_loopback() -> int:
    for line in COUNTERS.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise LookupError("no loopback interface")


def check_kernel_counters(ctx: DistributedContext, operation: str) -> tuple[int, int, float] | None:
    """On rank 0: bytes by the kernel, and of others' traffic per second before and after."""
    layout = bands((NUMBERS,), ctx.world_size)
    whole = torch.ones(NUMBERS)

    def once() -> None:
        if operation == "gather":
            gather_boxes(ctx.comm, whole, layout)
        else:
            all_reduce(ctx.comm, whole)

    def quiet_rate(seconds: float) -> float:
        before = bytes_received_on_loopback()
        time.sleep(seconds)
        return (bytes_received_on_loopback() - before) / seconds

    once()
    ctx.barrier()
    noise = quiet_rate(0.2) if ctx.rank == 0 else 0.0
    ctx.barrier()
    ctx.ledger.reset()
    before, began = bytes_received_on_loopback(), time.monotonic()
    ctx.barrier()
    for _ in range(3):
        once()
    ctx.barrier()
    moved, seconds = bytes_received_on_loopback() - before, time.monotonic() - began
    ctx.barrier()
    if ctx.rank == 0:
        noise = max(noise, quiet_rate(0.2))
    ctx.barrier()
    told = int(all_reduce(ctx.comm, torch.tensor(ctx.ledger.bytes_sent)))
    return moved, told, noise * seconds


@pytest.mark.skipif(not COUNTERS.exists(), reason="no /proc/net/dev: the kernel doesn't tell")
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("operation", ["gather", "all_reduce"])
def test_kernel_counts_the_same_bytes(pool: WorkerPool, operation: str, world_size: int) -> None:
    seen = []
    for _ in range(3):
        moved, told, others = pool.run(check_kernel_counters, operation, world_size=world_size)[0]
        expected = 3 * (world_size - 1) * 4 * NUMBERS * (2 if operation == "all_reduce" else 1)
        assert told == pytest.approx(expected, abs=100)
        if others <= 0.05 * told and abs(moved - told) <= 0.05 * told:
            return
        seen.append((moved, told, others))
        # What should be there must be there, whatever else is going on.
        assert moved >= 0.95 * told
    if all(others > 0.05 * told for _, told, others in seen):
        pytest.skip(f"other traffic on the loopback interface: (moved, told, others') {seen}")
    pytest.fail(f"bytes by the kernel, by the ledger, and others' by estimate: {seen}")
