"""Facts told between ranks, and the errors where they differ: on every rank, with every value."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch

from shardinv import DisagreementError, DistributedContext, RankError
from shardinv.exchange import FirstUse, TensorSpec, agree, publish
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised


def check_publish(ctx: DistributedContext) -> list[list[object]]:
    facts = [(ctx.rank, torch.float32), {"shape": (1, 2)}, None, "x" * 100_000 + str(ctx.rank)]
    return [publish(ctx.comm, f"fact {number}", fact) for number, fact in enumerate(facts)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_publish_tells_every_rank_the_value_of_each(pool: WorkerPool, world_size: int) -> None:
    for told in pool.run(check_publish, world_size=world_size):
        assert told[0] == [(rank, torch.float32) for rank in range(world_size)]
        assert told[1] == [{"shape": (1, 2)}] * world_size
        assert told[2] == [None] * world_size
        assert [text[-1] for text in told[3]] == [str(rank) for rank in range(world_size)]


def check_leftovers(ctx: DistributedContext) -> int:
    for _ in range(20):
        publish(ctx.comm, "a fact", "x" * 1000)
    ctx.barrier()
    store = ctx.comm.store
    assert store is not None
    return sum(store.check([f"fact/{n}/{r}"]) for n in range(20) for r in range(ctx.world_size))


def test_old_facts_do_not_pile_up_in_the_store(pool: WorkerPool) -> None:
    assert max(pool.run(check_leftovers, world_size=3)) <= 3


def disagree(ctx: DistributedContext) -> None:
    agree(ctx.comm, "the image's shape", (1, 2 + ctx.rank // 2), "Give every rank the same image.")


@pytest.mark.parametrize("world_size", [3, 4])
def test_disagreement_is_raised_on_every_rank_with_every_value(
    pool: WorkerPool, world_size: int
) -> None:
    outcomes = pool.run(disagree, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, DisagreementError, r"^ranks disagree on the image's shape: ")
    assert_every_rank_raised(outcomes, ValueError, r"Give every rank the same image\.$")
    for rank in range(world_size):
        value = rf"rank {rank}: \(1, {2 + rank // 2}\)"
        assert_every_rank_raised(outcomes, DisagreementError, value)


def check_agreement(ctx: DistributedContext) -> None:
    agree(ctx.comm, "nothing special", (1, 2), "")
    with pytest.raises(DisagreementError, match="rank 1: <1>"):
        agree(ctx.comm, "the rank", ctx.rank, "", show=lambda value: f"<{value}>")
    agree(ctx.comm, "what comes after", "the same", "")


def test_equal_values_pass_also_after_a_disagreement(pool: WorkerPool) -> None:
    pool.run(check_agreement, world_size=2)


def check_different_places(ctx: DistributedContext) -> None:
    what = "what the denoiser got" if ctx.rank == 1 else "what the fidelity got"
    with pytest.raises(RankError, match="different places in the program") as error:
        publish(ctx.comm, what, 0)
    assert "'what the denoiser got'" in str(error.value)
    assert "'what the fidelity got'" in str(error.value)


def test_different_questions_are_told_apart(pool: WorkerPool) -> None:
    pool.run(check_different_places, world_size=3)


def check_absence(ctx: DistributedContext) -> None:
    impatient = replace(ctx.comm, timeout=timedelta(seconds=1))
    if ctx.rank == 0:
        began = time.monotonic()
        with pytest.raises(RankError, match="rank 1 did not come to compare 'a shape'"):
            publish(impatient, "a shape", 0)
        assert 1 <= time.monotonic() - began < 10


def test_rank_that_does_not_come_is_named_in_time(pool: WorkerPool) -> None:
    pool.run(check_absence, world_size=2)


def check_first_use(ctx: DistributedContext) -> None:
    first = FirstUse(ctx.comm)
    size, rank = ctx.world_size, ctx.rank
    many = size > 1

    def asked() -> int:
        return ctx.comm.agreements

    image = (TensorSpec((1, 2), torch.float32), True)
    first.same("the image", image, "")
    first.same("the image", image, "")
    assert asked() == many
    first.same("the noise", image, "")
    first.same("the image", (TensorSpec((1, 3), torch.float32), True), "")
    assert asked() == 3 * many
    assert first.facts("outputs", image, rank) == list(range(size))
    assert first.facts("outputs", image, rank) == list(range(size))
    assert asked() == 4 * many
    for _ in range(2):  # without a key, there is nothing to remember it by
        assert first.facts("outputs", None, rank + 1) == list(range(1, size + 1))
    assert asked() == 6 * many
    if many:
        with pytest.raises(DisagreementError, match=f"rank {rank} told the others {rank}"):
            first.facts("outputs", image, rank + 10)
    assert asked() == 6 * many
    every = FirstUse(ctx.comm, every_call=True)
    for _ in range(3):
        every.same("the image", image, "")
        assert every.facts("outputs", image, 2 * rank) == [2 * r for r in range(size)]
    assert asked() == 12 * many
    assert ctx.ledger.calls == 0


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_first_use_asks_once_for_each_kind(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_first_use, world_size=world_size)


def check_shown_keys(ctx: DistributedContext) -> None:
    spec = TensorSpec((1, 2 + ctx.rank), torch.float16)
    first = FirstUse(ctx.comm)
    with pytest.raises(DisagreementError) as error:
        first.same("the image", (spec, False), "Same images, please.")
    assert "rank 0: ((1, 2) float16, False); rank 1: ((1, 3) float16, False)" in str(error.value)
    # What failed is not taken for agreed.
    with pytest.raises(DisagreementError):
        first.same("the image", (spec, False), "")


def test_shapes_are_shown_in_words(pool: WorkerPool) -> None:
    pool.run(check_shown_keys, world_size=2)
