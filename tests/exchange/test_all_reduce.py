"""Sums, means, maxima and minima of tensors of every rank."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from shardinv import DistributedContext
from shardinv.exchange import all_reduce
from shardinv.exchange.collectives import SMALL
from shardinv.exchange.tensors import as_bytes
from tests.exchange.inputs import DTYPES, like_nccl, values
from tests.harness import WORLD_SIZES, WorkerPool, assert_close

#: In units of the last place of each type, for the sum of four numbers in another order.
TOLERANCE = {
    torch.float32: 5e-7,
    torch.float64: 1e-15,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.complex64: 5e-7,
    torch.complex128: 1e-15,
}


def combine(inputs: list[Tensor], op: str) -> Tensor:
    """The same by definition, in double precision."""
    dtype = inputs[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64
    stacked = torch.stack([tensor.to(wide) for tensor in inputs])
    if op == "max":
        return stacked.amax(0).to(dtype)
    if op == "min":
        return stacked.amin(0).to(dtype)
    return (stacked.sum(0) / (len(inputs) if op == "mean" else 1)).to(dtype)


def shapes_around_small(dtype: torch.dtype) -> list[tuple[int, ...]]:
    """Shapes of a few bytes, of just below and above the limit, and with nothing in them."""
    limit = SMALL // dtype.itemsize
    return [(), (0,), (3, 0, 2), (7,), (limit,), (limit + 1,), (3, limit // 2)]


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(as_bytes(tensor.contiguous()).numpy().tobytes()).hexdigest()


def check_all_types(ctx: DistributedContext, nccl: bool) -> list[str]:
    comm = like_nccl(ctx.comm) if nccl else ctx.comm
    digests = []
    for dtype in DTYPES:
        if dtype in (torch.bool, torch.uint8):
            continue
        real = dtype.is_floating_point
        ops = ["sum"] + ["mean"] * (real or dtype.is_complex)
        ops += ["max", "min"] * (not dtype.is_complex)
        for shape in shapes_around_small(dtype):
            for op in ops:
                inputs = [values(rank, shape, dtype) for rank in range(comm.size)]
                mine = inputs[comm.rank].clone()
                result = all_reduce(comm, mine, op)
                what = f"{op} of {shape} {dtype}"
                rtol = TOLERANCE.get(dtype, 0.0) if op in ("sum", "mean") else 0.0
                assert_close(result, combine(inputs, op), rtol, what)
                assert result.data_ptr() == mine.data_ptr(), f"{what}: not in place"
                digests.append(f"{what}: {digest(result)}")
    return digests


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("nccl", [False, True], ids=["gloo", "like nccl"])
def test_every_type_below_and_above_small(pool: WorkerPool, world_size: int, nccl: bool) -> None:
    digests = pool.run(check_all_types, nccl, world_size=world_size)
    for rank, others in enumerate(digests[1:], start=1):
        for ours, theirs in zip(digests[0], others, strict=True):
            assert ours == theirs, f"not the same bits on ranks 0 and {rank}"


def awkward_views(tensor: Tensor) -> dict[str, Tensor]:
    """The values of a ``(6, n)`` tensor in ways that can't be sent as they are."""
    return {
        "transposed": tensor.t(),
        "strided": tensor[::2, 1::3],
        "expanded": tensor[:1].expand(6, -1),
        "conjugated": tensor.conj(),
        "negated": tensor.conj().imag,
    }


def check_awkward_views(ctx: DistributedContext) -> None:
    for columns in (5, 4000):
        inputs = [
            awkward_views(values(rank, (6, columns), torch.complex128))
            for rank in range(ctx.world_size)
        ]
        for name, mine in inputs[ctx.rank].items():
            before = mine.clone()
            expected = combine([views[name].resolve_conj() for views in inputs], "sum")
            result = all_reduce(ctx.comm, mine)
            assert_close(result, expected, 1e-14, f"{name}, {columns} columns")
            if ctx.world_size > 1:
                assert torch.equal(mine, before), f"{name}: the given tensor was changed"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_tensors_that_are_not_contiguous(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_awkward_views, world_size=world_size)


def check_repeatable(ctx: DistributedContext) -> None:
    mine = values(ctx.rank, (50_000,), torch.float32)
    first = all_reduce(ctx.comm, mine.clone())
    for _ in range(3):
        assert torch.equal(all_reduce(ctx.comm, mine.clone()), first)
    total = torch.zeros_like(mine)
    for rank in range(ctx.world_size):
        total += values(rank, (50_000,), torch.float32)
    assert torch.equal(first, total), "not summed in the order of the ranks"


def test_large_sum_is_in_the_order_of_the_ranks(pool: WorkerPool) -> None:
    pool.run(check_repeatable, world_size=4)


def check_refusals(ctx: DistributedContext) -> int:
    for op, tensor, error, complaint in [
        ("product", torch.ones(2), ValueError, "op must be one of"),
        ("max", torch.ones(2, dtype=torch.complex64), TypeError, "no order"),
        ("mean", torch.ones(2, dtype=torch.int64), TypeError, "use op='sum'"),
    ]:
        with pytest.raises(error, match=complaint):
            all_reduce(ctx.comm, tensor, op)
    return ctx.ledger.calls


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_has_no_answer_is_refused_before_any_message(
    pool: WorkerPool, world_size: int
) -> None:
    assert pool.run(check_refusals, world_size=world_size) == [0] * world_size
