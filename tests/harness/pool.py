"""A pool of gloo processes that stays up for a whole test run, because importing torch is slow.

A test of several ranks is a module-level function and a call::

    from tests.harness import WORLD_SIZES, WorkerPool

    def sum_of_ranks(ctx, start):
        total = torch.tensor(float(start + ctx.rank))
        dist.all_reduce(total)
        return total

    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_sum(pool: WorkerPool, world_size: int) -> None:
        results = pool.run(sum_of_ranks, 10, world_size=world_size)

Each world size has processes of its own, whose default group is exactly that world; a run that
fails costs those processes their life, so that nothing of it reaches the next test. They are forked
from one server that has imported everything already, which makes a restart a matter of a fraction
of a second. How real programs start and end is tested with ``launch`` instead.
"""

from __future__ import annotations

import pickle
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import worker
from tests.harness.outcome import FailedRank, WorkerFailure
from tests.harness.references import FunctionReference
from tests.harness.world import World

#: The world sizes that a distributed block is tested on; 1 is a process without a group.
WORLD_SIZES = (1, 2, 3, 4)

STOP_TIMEOUT = 5.0

#: The file through which ranks meet is a log that every clone of the store reads from the start:
#: a new world begins a new one.
RUNS_UNTIL_RETIREMENT = 100


class WorkerPool:
    """Runs a function on every rank of a small world, again and again.

    Parameters
    ----------
    context_factory : callable, optional
        Module-level ``factory(process_group, **options)`` that builds the functions' first
        argument, a context manager; ``process_group`` is None in a world of one. By default a
        ``shardinv.DistributedContext`` on the CPU.
    grace : float
        Seconds that the other ranks get to answer once one has failed, and that all get to leave
        the context once all have returned.
    group_timeout : float
        Seconds after which a collective gives up by itself.

    Notes
    -----
    Not thread-safe: one run at a time.
    """

    def __init__(
        self,
        context_factory: Callable[..., Any] = worker.shardinv_context,
        grace: float = 5.0,
        group_timeout: float = 120.0,
    ) -> None:
        self.grace = grace
        self.group_timeout = group_timeout
        self._factory = FunctionReference.of(context_factory)
        self._folder = tempfile.TemporaryDirectory(prefix="shardinv-test-workers-")
        self._worlds: dict[int, World] = {}
        self._started = 0
        self._closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        world_size: int = 2,
        timeout: float = 60.0,
        expect_error: bool = False,
        seed: int = 0,
        context: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call ``function(ctx, *args, **kwargs)`` on every rank.

        Parameters
        ----------
        function : callable
            Defined at the top level of a module; found by name in the workers.
        *args, **kwargs
            The same for every rank, sent as a pickle. CPU tensors are fine.
        world_size : int
            How many ranks.
        timeout : float
            Seconds for the whole run, without the start of processes.
        expect_error : bool
            Return what happened on each rank instead of raising.
        seed : int
            Seed of torch, numpy and ``random`` on every rank, set before the call.
        context : dict, optional
            Further keyword arguments for the context.

        Returns
        -------
        list
            Results by rank. With ``expect_error``, a :class:`FailedRank` for each rank that failed.

        Raises
        ------
        WorkerFailure
            If a rank raised, died, or hadn't answered in time; or if all returned and some
            message between them was left without its counterpart.

        Notes
        -----
        Warnings meet the filters that are in force where ``run`` is called. What the ranks print
        appears on standard output, with the rank in front.
        """
        __tracebackhide__ = True
        if self._closed:
            raise RuntimeError("This pool has been closed; make another.")
        job = worker.Job(
            function=FunctionReference.of(function),
            arguments=pickle.dumps((args, kwargs)),
            seed=seed,
            context=context or {},
            filters=_current_warning_filters(),
            sys_path=tuple(sys.path),
        )
        world = self._world(world_size)
        world.runs += 1
        began = time.monotonic()
        healthy = False
        try:
            outcomes = world.ask(job, began + timeout, self.grace)
            failed = any(isinstance(outcome, FailedRank) for outcome in outcomes)
            if not failed:
                leftovers = world.ask("settle", time.monotonic() + self.grace, self.grace)
                failed = any(isinstance(leftover, FailedRank) for leftover in leftovers)
                if failed:
                    outcomes = [
                        _unsettled(leftover) or out for leftover, out in zip(leftovers, outcomes)
                    ]
            healthy = not failed
        finally:  # also on Ctrl-C: a world amid a run is of no use any more
            if not healthy:
                self._discard(world)
            output = world.new_output()
        results = [
            pickle.loads(out.value) if isinstance(out, worker.Returned) else out for out in outcomes
        ]
        if failed and not expect_error:
            seconds = time.monotonic() - began
            what = (
                f"{job.function.qualname} failed on {world_size} ranks after {seconds:.1f} s "
                f"({job.function.path}):"
            )
            errors = {rank: out for rank, out in enumerate(results) if isinstance(out, FailedRank)}
            raise WorkerFailure(what, errors, output)
        if output:
            print(output, end="")
        return results

    def process_ids(self) -> dict[int, list[int]]:
        """Return the ids of the living workers of each world size started so far."""
        return {
            size: [process.pid for process in world.processes if process.pid is not None]
            for size, world in self._worlds.items()
        }

    def close(self) -> None:
        """End all workers and wait until they are gone."""
        self._closed = True
        worlds = list(self._worlds.values())
        for world in worlds:
            world.request_stop()
        for world in worlds:
            world.end(STOP_TIMEOUT)
        self._worlds.clear()
        self._folder.cleanup()

    def _world(self, size: int) -> World:
        if size < 1:
            raise ValueError(f"world_size must be at least 1, got {size}.")
        world = self._worlds.get(size)
        if world is not None and not world.is_alive():  # died while idle
            self._discard(world)
            world = None
        if world is not None and world.runs >= RUNS_UNTIL_RETIREMENT:
            world.request_stop()
            self._discard(world, STOP_TIMEOUT)
            world = None
        if world is None:
            self._started += 1
            world = World.start(
                size,
                name=f"world-{size}-{self._started}",
                folder=Path(self._folder.name),
                group_timeout=self.group_timeout,
                factory=self._factory,
            )
            self._worlds[size] = world
        return world

    def _discard(self, world: World, patience: float = 0.0) -> None:
        self._worlds.pop(len(world.processes), None)
        world.end(patience)


def _current_warning_filters() -> tuple[worker.WarningFilter, ...]:
    filters: list[worker.WarningFilter] = []
    for action, message, category, module, line in warnings.filters:
        try:
            pickle.dumps(category)
        except Exception:  # a class that only this process knows
            continue
        if isinstance(category, type):
            filters.append((action, _pattern(message), category, _pattern(module), line))
    return tuple(filters)


def _pattern(part: Any) -> str:
    if part is None:
        return ""
    return part.pattern if isinstance(part, re.Pattern) else str(part)


def _unsettled(leftover: Any) -> FailedRank | None:
    if not isinstance(leftover, FailedRank):
        return None
    return FailedRank(
        kind=leftover.kind,
        type_name=leftover.type_name,
        message=(
            "returned, but then couldn't leave the context and pass a barrier: is there a message "
            f"that nobody received, or a collective that not every rank took part in? "
            f"({leftover.message})"
        ),
        traceback=leftover.traceback,
        bases=leftover.bases,
    )
