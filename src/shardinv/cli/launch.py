"""Starts the worker processes of a command on this machine, and ends them together.

The processes are the ranks; they find each other as under ``torchrun``. When one fails the others
end with it, and one message says which it was and why.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel

from shardinv.cli.failures import first_cause
from shardinv.context.environment import detect_launch

# After one rank has failed, the others get this long to end by themselves before they are ended.
_GRACE_SECONDS = 10.0


def launched_by_other() -> bool:
    """Whether a launcher (``torchrun``, ``srun``, ``mpirun``) started this process as a rank."""
    return detect_launch(os.environ).launcher != "none"


def default_processes(device: str) -> int:
    """As many processes as there are GPUs, else two.

    Parameters
    ----------
    device
        ``"auto"``, ``"cpu"`` or ``"gpu"``.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return gpus if gpus and device != "cpu" else 2


def run_workers(
    command: str, settings: BaseModel, processes: int, *, log: Path, lighter: str
) -> int:
    """Run a command on ``processes`` new processes and wait for them.

    Parameters
    ----------
    command
        Name of an entry of `shardinv.cli.worker.COMMANDS`.
    settings
        Handed to it, as JSON.
    processes
        Number of ranks.
    log
        Where to write the whole traceback, should a rank fail.
    lighter
        What to try if a rank was killed, as it is where memory runs out.

    Returns
    -------
    int
        Exit status: 0, or 1 after a failure, or 130 after Ctrl-C.
    """
    with tempfile.TemporaryDirectory(prefix="shardinv-") as folder, _meeting_point() as port:
        workers: list[subprocess.Popen[bytes]] = []
        try:
            with _terminable():
                for rank in range(processes):
                    worker = _start(command, settings, rank, processes, port, Path(folder))
                    # Kept at once: Ctrl-C in between must find those that were started.
                    workers.append(worker)
                _wait(workers)
        except KeyboardInterrupt:
            print("\nshardinv: interrupted, all processes are ended", file=sys.stderr)
            return 130
        finally:
            _end(workers)
        if all(worker.returncode == 0 for worker in workers):
            return 0
        message, details = _explain(workers, Path(folder), lighter)
        if details:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(details)
            message += f" (the whole traceback is in {log})"
        print(f"Error: {message}", file=sys.stderr)
        return 1


@contextlib.contextmanager
def _meeting_point() -> Iterator[int]:
    """The store at which the ranks meet, kept here, on a port that the system picks.

    As ``torchrun`` does: no other program can take the port in between, and the store outlives a
    rank that fails.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    try:
        yield int(store.port)
    finally:
        del store


def _start(
    command: str, settings: BaseModel, rank: int, processes: int, port: int, folder: Path
) -> subprocess.Popen[bytes]:
    env = dict(os.environ)
    env |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    # Threads of several processes on the same cores would only wait for each other.
    for name, value in process_defaults(max(1, cores() // processes)).items():
        env.setdefault(name, value)
    errors = None if rank == 0 else (folder / f"{rank}.err").open("wb")
    worker = subprocess.Popen(
        [sys.executable, "-m", "shardinv.cli.worker"],
        env=env,
        stdin=subprocess.PIPE,
        # Rank 0 speaks for all; what another prints is kept in case it dies without a word.
        stdout=None if rank == 0 else errors,
        stderr=errors,
        # Ctrl-C comes to this process alone, which ends the workers.
        start_new_session=True,
    )
    if errors is not None:
        errors.close()
    order = {
        "command": command,
        "settings": settings.model_dump(mode="json"),
        "report": str(folder / f"{rank}.json"),
    }
    assert worker.stdin is not None
    # The pipe stays open: its end tells the worker that this process is gone.
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(order).encode() + b"\n")
        worker.stdin.flush()
    return worker


def process_defaults(threads: int) -> dict[str, str]:
    """Environment variables that a rank's process should begin with, unless they are set.

    Parameters
    ----------
    threads
        Of each process.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        # By default glibc gives an image's memory back to the system after every layer of a network
        # and asks for it again: a fifth of the time of FFDNet on a CPU. Other C libraries ignore
        # this.
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**31),
        # A rank that waits for a slower one looks up now and then, each time with a warning of C++.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # The profiler tells when it begins and ends, and that there is no GPU.
        "KINETO_LOG_LEVEL": "6",
    }


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the workers as Ctrl-C does."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all have ended, or until one has failed and the others had time to follow."""
    deadline: float | None = None
    while any(worker.poll() is None for worker in workers):
        if deadline is None and any(worker.returncode for worker in workers):
            deadline = time.monotonic() + _GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    running = [worker for worker in workers if worker.poll() is None]
    for worker in running:
        worker.terminate()
    deadline = time.monotonic() + 3
    for worker in running:
        try:
            worker.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    for worker in workers:
        if worker.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()


def _explain(
    workers: Sequence[subprocess.Popen[bytes]], folder: Path, lighter: str
) -> tuple[str, str]:
    """Which rank failed first and why: one line, and all details."""
    reports = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    cause = first_cause(reports)
    if cause is not None:
        return f"rank {cause['rank']}: {cause['message']}", cause["traceback"]
    # No rank had the chance to say why: killed from outside, or by the system for lack of memory.
    for rank, worker in enumerate(workers):
        silent = not (folder / f"{rank}.json").exists()
        if worker.returncode and silent:
            words = (folder / f"{rank}.err").read_text(errors="replace") if rank else ""
            return f"rank {rank} {_ending(worker.returncode, lighter)}", words
    first = min(reports, key=lambda report: report["time"], default=None)
    return (first["message"], first["traceback"]) if first else ("a rank failed", "")


def _ending(code: int, lighter: str) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = f"; was there too little memory? Try {lighter}" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
