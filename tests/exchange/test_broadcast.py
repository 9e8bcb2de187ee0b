"""One rank's values on every rank."""

from __future__ import annotations

import pytest
import torch

from shardinv import DistributedContext
from shardinv.exchange import barrier, broadcast, broadcast_tensors
from tests.exchange.inputs import DTYPES, values
from tests.harness import WORLD_SIZES, WorkerPool, assert_close


def check_broadcast(ctx: DistributedContext) -> None:
    for source in range(ctx.world_size):
        for dtype in DTYPES:
            for shape in [(), (0, 3), (5, 4)]:
                mine = values(ctx.rank, shape, dtype)
                result = broadcast(ctx.comm, mine, source)
                assert_close(result, values(source, shape, dtype), 0.0, f"{source} {dtype} {shape}")
                assert result.data_ptr() == mine.data_ptr()
    transposed = values(ctx.rank, (4, 6), torch.float64).t()
    result = broadcast(ctx.comm, transposed)
    assert_close(result, values(0, (4, 6), torch.float64).t(), 0.0, "transposed")
    barrier(ctx.comm)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_type_from_every_rank(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_broadcast, world_size=world_size)


def check_many(ctx: DistributedContext, source: int) -> int:
    def state(rank: int) -> list[torch.Tensor]:
        # Odd numbers of bytes first, so that the wider types start anywhere in the message.
        shapes = [(3,), (1, 2), (), (0,), (2, 3), (5,), (1,), (3, 1), (4,)]
        return [values(rank, shape, dtype) for shape, dtype in zip(shapes, reversed(DTYPES))]

    mine = [*state(ctx.rank), values(ctx.rank, (3, 4), torch.float32).t()]
    mine.append(torch.nn.Parameter(values(ctx.rank, (2,), torch.float64)))
    places = [tensor.data_ptr() for tensor in mine]
    broadcast_tensors(ctx.comm, mine, source)
    expected = [*state(source), values(source, (3, 4), torch.float32).t()]
    expected.append(values(source, (2,), torch.float64))
    assert_close([tensor.detach() for tensor in mine], expected, 0.0)
    assert [tensor.data_ptr() for tensor in mine] == places
    broadcast_tensors(ctx.comm, [], source)
    return ctx.ledger.calls


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_many_tensors_of_mixed_types_in_one_message(pool: WorkerPool, world_size: int) -> None:
    calls = pool.run(check_many, world_size - 1, world_size=world_size)
    assert calls == [0 if world_size == 1 else 1] * world_size
