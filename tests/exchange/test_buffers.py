"""Memory for messages that is lent, given back and used again, within a bound."""

from __future__ import annotations

import torch

from shardinv.exchange.buffers import BufferPool

CPU = torch.device("cpu")


def test_a_buffer_is_used_again_but_never_lent_twice() -> None:
    pool = BufferPool()
    first, second = pool.take(1000, CPU), pool.take(1000, CPU)
    assert first.data_ptr() != second.data_ptr()
    assert first.dtype == torch.uint8
    assert first.numel() >= 1000
    place = first.data_ptr()
    pool.give(first)
    again = pool.take(1000, CPU)
    assert again.data_ptr() == place
    assert pool.take(1000, CPU).data_ptr() not in (place, second.data_ptr())


def test_sizes_that_are_nearly_the_same_share_buffers() -> None:
    pool = BufferPool()
    for nbytes in (0, 1, 1023, 100_000, 3_000_001, 2**26):
        buffer = pool.take(nbytes, CPU)
        assert max(1, nbytes) <= buffer.numel() <= max(1024, 1.125 * nbytes + 1024)
    buffer = pool.take(1_000_000, CPU)
    place = buffer.data_ptr()
    pool.give(buffer)
    assert pool.take(1_000_001, CPU).data_ptr() == place


def test_what_was_not_used_for_longest_goes_first() -> None:
    pool = BufferPool(limit=10 * 1024)
    lent = {size: pool.take(size * 1024, CPU) for size in (2, 3, 4, 5)}
    places = {size: buffer.data_ptr() for size, buffer in lent.items()}
    for size in (2, 3, 4):
        pool.give(lent[size])
    assert pool.kept == 9 * 1024
    pool.give(pool.take(2 * 1024, CPU))  # used: 3 is the oldest now
    pool.give(lent[5])
    assert pool.kept <= pool.limit
    assert pool.kept == 7 * 1024
    assert pool.take(2 * 1024, CPU).data_ptr() == places[2]
    assert pool.take(5 * 1024, CPU).data_ptr() == places[5]
    assert pool.kept == 0


def test_one_that_is_larger_than_the_bound_is_not_kept() -> None:
    pool = BufferPool(limit=1024)
    pool.give(pool.take(4096, CPU))
    assert pool.kept == 0
