"""The pool itself: results, failures of every kind, and that none of them reaches the next run.

A stand-in for the context keeps these apart from the code under test; the last test uses the real
one.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.harness import (
    WORLD_SIZES,
    FailedRank,
    WorkerFailure,
    WorkerPool,
    assert_every_rank_raised,
    assert_same_on_every_rank,
)


@dataclass
class StandIn:
    """As much of a context as the pool needs."""

    process_group: dist.ProcessGroup | None
    tag: str = ""

    @property
    def rank(self) -> int:
        return 0 if self.process_group is None else self.process_group.rank()

    @property
    def world_size(self) -> int:
        return 1 if self.process_group is None else self.process_group.size()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    with WorkerPool(context_factory=StandIn, grace=1.0) as pool:
        yield pool


def sum_of_ranks(ctx: StandIn, tensor: Tensor, *, scale: float) -> tuple[int, int, Tensor]:
    total = tensor * scale * (ctx.rank + 1)
    if ctx.process_group is not None:
        dist.all_reduce(total, group=ctx.process_group)
    return ctx.rank, ctx.world_size, total


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_results_come_in_order_of_rank(workers: WorkerPool, world_size: int) -> None:
    tensor = torch.randn(3, 2, dtype=torch.complex128)
    results = workers.run(sum_of_ranks, tensor, scale=2.0, world_size=world_size)
    assert [(rank, size) for rank, size, _ in results] == [
        (rank, world_size) for rank in range(world_size)
    ]
    totals = [total for _, _, total in results]
    assert_same_on_every_rank(totals)
    torch.testing.assert_close(totals[0], tensor * world_size * (world_size + 1))


def default_world(ctx: StandIn) -> tuple[int, ...]:
    if not dist.is_initialized():
        return (os.getpid(), 1)
    return (os.getpid(), dist.get_world_size())


def test_each_world_is_its_own_default_group_and_stays_up(workers: WorkerPool) -> None:
    first = {size: workers.run(default_world, world_size=size) for size in WORLD_SIZES}
    again = {size: workers.run(default_world, world_size=size) for size in WORLD_SIZES}
    assert first == again
    assert all(size == world for size, ranks in first.items() for _, world in ranks)
    assert len({pid for ranks in first.values() for pid, _ in ranks}) == sum(WORLD_SIZES)


def large_result(ctx: StandIn, given: Tensor) -> Tensor:
    return given + ctx.rank


def test_arguments_and_results_larger_than_a_pipe(workers: WorkerPool) -> None:
    given = torch.arange(1_000_000.0)
    for rank, result in enumerate(workers.run(large_result, given)):
        assert torch.equal(result, given + rank)


@dataclass
class Settings:
    depth: int


class OddImageError(ValueError):
    pass


def needs_settings(ctx: StandIn, settings: Settings) -> Settings:
    assert isinstance(settings, Settings)
    return Settings(settings.depth + ctx.rank)


def test_classes_of_a_test_module_travel_both_ways(workers: WorkerPool) -> None:
    assert workers.run(needs_settings, Settings(3)) == [Settings(3), Settings(4)]


def fail_on(ctx: StandIn, ranks: list[int]) -> int:
    if ctx.rank in ranks:
        raise OddImageError(f"image of {2 * ctx.rank + 1} rows")
    if ctx.process_group is not None:
        dist.barrier(ctx.process_group)
    return ctx.rank


def test_one_rank_raises_while_the_other_waits(workers: WorkerPool) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerFailure, match="rank 1 raised OddImageError: image of 3") as failure:
        workers.run(fail_on, [1])
    assert time.monotonic() - began < 10
    errors = failure.value.errors
    assert errors[0].kind == "unanswered"
    assert "fail_on" in errors[0].traceback  # where it waited
    assert errors[1].type_name == "OddImageError"
    assert errors[1].is_a(ValueError)
    assert not errors[1].is_a(TypeError)
    assert "raise OddImageError(f" in str(failure.value)
    assert "tests/harness/worker.py" not in errors[1].traceback
    assert workers.run(fail_on, []) == [0, 1]


def test_every_rank_raises(workers: WorkerPool) -> None:
    outcomes = workers.run(fail_on, [0, 1, 2], world_size=3, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, match=r"image of \d rows")
    with pytest.raises(AssertionError, match="rank 0 raised OddImageError"):
        assert_every_rank_raised(outcomes, TypeError)
    assert workers.run(fail_on, [], world_size=3) == [0, 1, 2]


def fail_without_waiting(ctx: StandIn) -> str:
    if ctx.rank == 0:
        raise OddImageError("no")
    return "fine"


def test_outcomes_of_some_ranks_only(workers: WorkerPool) -> None:
    outcomes = workers.run(fail_without_waiting, expect_error=True)
    assert isinstance(outcomes[0], FailedRank)
    assert outcomes[1] == "fine"
    with pytest.raises(AssertionError, match="rank 1 raised nothing and returned 'fine'"):
        assert_every_rank_raised(outcomes, ValueError)


def sleep_on_rank_one(ctx: StandIn) -> int:
    if ctx.rank == 1:
        time.sleep(60)
    return ctx.rank


def test_a_hang_ends_in_time_and_shows_where(workers: WorkerPool) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerFailure, match="rank 1 had not answered after") as failure:
        workers.run(sleep_on_rank_one, timeout=2)
    assert 2 <= time.monotonic() - began < 8
    assert list(failure.value.errors) == [1]
    assert "in sleep_on_rank_one" in failure.value.errors[1].traceback
    assert workers.run(fail_on, []) == [0, 1]


def die(ctx: StandIn, by_signal: bool) -> None:
    if ctx.rank == 1 and by_signal:
        os.kill(os.getpid(), signal.SIGKILL)
    if ctx.rank == 1:
        os._exit(7)
    if ctx.process_group is not None:
        dist.barrier(ctx.process_group)


@pytest.mark.parametrize(("by_signal", "how"), [(False, "exit code 7"), (True, "SIGKILL")])
def test_a_worker_dies(workers: WorkerPool, by_signal: bool, how: str) -> None:
    with pytest.raises(WorkerFailure, match=rf"rank 1 died \(.*{how}") as failure:
        workers.run(die, by_signal)
    assert failure.value.errors[1].kind == "died"
    assert workers.run(fail_on, []) == [0, 1]


def test_a_worker_that_died_while_idle_is_replaced(workers: WorkerPool) -> None:
    workers.run(fail_on, [], world_size=2)
    os.kill(workers.process_ids()[2][0], signal.SIGKILL)
    time.sleep(0.2)
    assert workers.run(fail_on, [], world_size=2) == [0, 1]


def test_a_world_retires_and_is_replaced(
    workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = workers.run(default_world, world_size=2)
    monkeypatch.setattr("tests.harness.pool.RUNS_UNTIL_RETIREMENT", 1)
    assert workers.run(default_world, world_size=2) != before


def collective_on_rank_zero_only(ctx: StandIn) -> None:
    if ctx.rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True)


def test_a_message_without_counterpart_fails_the_run_that_left_it(workers: WorkerPool) -> None:
    with pytest.raises(WorkerFailure, match="a collective that not every rank took part in"):
        workers.run(collective_on_rank_zero_only)
    assert workers.run(fail_on, []) == [0, 1]


def return_a_lock(ctx: StandIn) -> object:
    return threading.Lock()


def test_a_result_that_cannot_travel(workers: WorkerPool) -> None:
    with pytest.raises(WorkerFailure, match="Return tensors and plain data"):
        workers.run(return_a_lock, world_size=1)


def compare_numbers(ctx: StandIn, sent: int) -> None:
    assert ctx.world_size + sent == 42


def test_a_failing_assert_shows_the_values(workers: WorkerPool) -> None:
    with pytest.raises(WorkerFailure, match=r"assert \(1 \+ 3\) == 42"):
        workers.run(compare_numbers, 3, world_size=1)


def test_functions_that_a_worker_could_not_find(workers: WorkerPool) -> None:
    with pytest.raises(TypeError, match="top level of a module"):
        workers.run(lambda ctx: None)


def leave_a_mess(ctx: StandIn) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")


def describe_state(ctx: StandIn) -> tuple[object, ...]:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.rand(1).item(),
        float(np.random.rand()),
        random.random(),
        os.environ.get("OMP_NUM_THREADS"),
        torch.cuda.is_available(),
    )


def test_each_run_begins_in_the_same_state(workers: WorkerPool) -> None:
    before = workers.run(describe_state)
    workers.run(leave_a_mess)
    after = workers.run(describe_state)
    assert before[0] == before[1] == after[0] == after[1]
    assert before[0][:3] == (torch.float32, True, 1)
    assert before[0][6:] == ("1", False)
    assert workers.run(describe_state, seed=1)[0][3] != before[0][3]


def warn(ctx: StandIn) -> int:
    warnings.warn("tile of one row", UserWarning, stacklevel=1)
    return ctx.rank


def test_warnings_meet_the_filters_of_the_test(workers: WorkerPool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_every_rank_raised(workers.run(warn, expect_error=True), UserWarning, "one row")
        warnings.simplefilter("ignore", UserWarning)
        assert workers.run(warn) == [0, 1]


def speak(ctx: StandIn) -> str:
    print("hello")
    return ctx.tag


def test_output_and_options_of_the_context(
    workers: WorkerPool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workers.run(speak, context={"tag": "debug"}) == ["debug", "debug"]
    assert capsys.readouterr().out == "[rank 0] hello\n[rank 1] hello\n"


def test_close_leaves_no_process() -> None:
    with WorkerPool(context_factory=StandIn) as pool:
        pool.run(fail_on, [], world_size=2)
        pids = pool.process_ids()[2]
        began = time.monotonic()
    assert time.monotonic() - began < 5
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="closed"):
        pool.run(fail_on, [])


def use_real_context(ctx: object) -> tuple[int, int]:
    size: int = ctx.world_size  # type: ignore[attr-defined]
    rank: int = ctx.rank  # type: ignore[attr-defined]
    if size > 1:
        dist.barrier()
    return rank, size


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_real_context(pool: WorkerPool, world_size: int) -> None:
    shardinv = pytest.importorskip("shardinv")
    if not hasattr(shardinv, "DistributedContext"):
        pytest.skip("no context yet")
    results = pool.run(use_real_context, world_size=world_size)
    assert results == [(rank, world_size) for rank in range(world_size)]
