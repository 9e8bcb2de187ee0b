"""The processes of one world size: started, asked, listened to, and ended.

Which world is needed, and what a failure means for a test, is decided in ``pool``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests.harness import worker
from tests.harness.outcome import FailedRank, WorkerFailure
from tests.harness.references import FunctionReference
from tests.harness.server import start_server

START_TIMEOUT = 180.0


@dataclass
class World:
    """The processes of one world size, with the pipes to them and the files they write."""

    processes: list[multiprocessing.process.BaseProcess]
    pipes: list[connection.Connection]
    logs: list[Path]
    stacks: list[Path]
    read_so_far: list[int]
    runs: int = 0

    @classmethod
    def start(
        cls,
        size: int,
        name: str,
        folder: Path,
        group_timeout: float,
        factory: FunctionReference,
    ) -> World:
        start_server()
        spawn = multiprocessing.get_context("forkserver")
        world = cls([], [], [], [], [0] * size)
        try:
            for rank in range(size):
                world.logs.append(folder / f"{name}-rank-{rank}.log")
                world.stacks.append(folder / f"{name}-rank-{rank}.stacks")
                setup = worker.WorkerSetup(
                    rank=rank,
                    world_size=size,
                    store_path=str(folder / f"{name}.store"),
                    group_timeout=group_timeout,
                    log_path=str(world.logs[-1]),
                    stack_path=str(world.stacks[-1]),
                    context_factory=factory,
                )
                ours, theirs = spawn.Pipe()
                process = spawn.Process(
                    target=worker.main,
                    args=(theirs, setup),
                    name=f"{name}-rank-{rank}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                world.processes.append(process)
                world.pipes.append(ours)
            outcomes = world.collect(time.monotonic() + START_TIMEOUT, grace=1.0)
        except BaseException:
            world.end(0.0)
            raise
        errors = {rank: out for rank, out in enumerate(outcomes) if isinstance(out, FailedRank)}
        if errors:
            output = world.new_output()
            world.end(0.0)
            raise WorkerFailure(f"The workers of a world of {size} didn't start:", errors, output)
        return world

    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def ask(self, request: Any, deadline: float, grace: float) -> list[Any]:
        message = pickle.dumps(request)
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # a dead rank shows when its answer is awaited
                pipe.send_bytes(message)
        return self.collect(deadline, grace)

    def collect(self, deadline: float, grace: float) -> list[Any]:
        """Await one message from each rank; :class:`FailedRank` for what can't be had.

        Once a rank has failed, the others get ``grace`` seconds: most likely they wait for it.
        """
        began = time.monotonic()
        answers: dict[int, Any] = {}
        pending = dict(enumerate(self.pipes))
        first_failure: str | None = None
        while pending:
            ready = connection.wait(
                [*pending.values(), *(self.processes[rank].sentinel for rank in pending)],
                max(0.0, deadline - time.monotonic()),
            )
            if not ready:
                break
            for rank, pipe in list(pending.items()):
                if pipe not in ready and self.processes[rank].sentinel not in ready:
                    continue
                answers[rank] = self._receive(rank)
                del pending[rank]
                if isinstance(answers[rank], FailedRank) and first_failure is None:
                    first_failure = f"rank {rank} had failed"
                    deadline = min(deadline, time.monotonic() + grace)
        if pending:
            waited = time.monotonic() - began
            after = f", {grace:.1f} s after {first_failure}" if first_failure else ""
            self._dump_stacks(pending)
            for rank in pending:
                answers[rank] = FailedRank(
                    kind="unanswered",
                    type_name="unanswered",
                    message=f"had not answered after {waited:.1f} s{after}",
                    traceback=self.stacks[rank].read_text(errors="replace"),
                )
        return [answers[rank] for rank in range(len(self.processes))]

    def _receive(self, rank: int) -> Any:
        # A process that ends right after its answer makes both the pipe and the sentinel ready.
        with contextlib.suppress(EOFError, OSError):
            if self.pipes[rank].poll():
                return pickle.loads(self.pipes[rank].recv_bytes())
        process = self.processes[rank]
        process.join(1.0)
        code = process.exitcode
        how = "closed its pipe" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        return FailedRank(kind="died", type_name="died", message=f"died ({how})", traceback="")

    def _dump_stacks(self, ranks: Any) -> None:
        for rank in ranks:
            pid = self.processes[rank].pid
            if pid is not None and self.processes[rank].is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
        # The handler writes at once, unless the process is stopped; its last line ends the dump.
        limit = time.monotonic() + 1.0
        sizes: list[int] = []
        while time.monotonic() < limit:
            time.sleep(0.05)
            now = [self.stacks[rank].stat().st_size for rank in ranks]
            if all(now) and now == sizes:
                break
            sizes = now

    def new_output(self) -> str:
        """Return what the ranks have printed since last asked, with the rank before each line."""
        lines: list[str] = []
        for rank, path in enumerate(self.logs):
            if not path.exists():
                continue
            with path.open("rb") as log:
                log.seek(self.read_so_far[rank])
                text = log.read()
            self.read_so_far[rank] += len(text)
            lines += [
                f"[rank {rank}] {line}\n" for line in text.decode(errors="replace").splitlines()
            ]
        return "".join(lines)

    def request_stop(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(pickle.dumps("stop"))

    def end(self, patience: float) -> None:
        """Wait up to ``patience`` seconds for the processes to end by themselves, then kill."""
        limit = time.monotonic() + patience
        for process in self.processes:
            if patience > 0:
                process.join(max(0.0, limit - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()
