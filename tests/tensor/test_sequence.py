"""A sharded tensor drawn from a generator is what the undistributed program draws from it."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardinv import DistributedContext
from shardinv.tensor import sequence
from shardinv.tensor.counter import Place
from shardinv.tensor.sequence import keep_part
from tests.harness import WORLD_SIZES, WorkerPool, assert_close

SHAPE = (2, 3, 13, 11)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_part_of_the_sequence(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    piece = 16 * data.draw(st.integers(1, 4))
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    part = torch.empty([b - a for a, b in bounds], dtype=dtype)
    place = Place(tuple(shape), tuple(a for a, _ in bounds))
    with mock.patch.object(sequence, "PIECE", piece):
        keep_part(part, place, lambda values: values.normal_(generator=generator))
    assert torch.equal(part, whole[tuple(slice(a, b) for a, b in bounds)])
    after = torch.Generator().manual_seed(1)
    torch.randn(shape, generator=after, dtype=dtype)
    assert torch.equal(generator.get_state(), after.get_state())


def draw_all(x: torch.Tensor) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [
        torch.empty_like(x).normal_(generator=generator),
        torch.empty_like(x).normal_(2.0, std=0.5, generator=generator),
        torch.empty_like(x).uniform_(-1, 3, generator=generator),
        torch.empty_like(x).uniform_(generator=generator),
    ]


def draw_sharded(ctx: DistributedContext) -> None:
    x = torch.zeros(SHAPE)
    wanted = draw_all(x)
    for mesh in (None, (ctx.world_size, 1), (1, ctx.world_size)):
        with mock.patch.object(sequence, "PIECE", 160):
            drawn = draw_all(ctx.shard(x, mesh))
        assert_close([t.full_tensor() for t in drawn], wanted, 0.0, f"mesh {mesh}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_any_number_of_ranks(pool: WorkerPool, world_size: int) -> None:
    pool.run(draw_sharded, world_size=world_size)
