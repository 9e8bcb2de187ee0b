"""Starts real programs the way users do, for tests of how processes find each other and end.

Ranks are forked from a process that has imported shardinv already, see ``prefork``, unless
a test asks for fresh interpreters; those that a program starts by itself, as ``torchrun`` does, are
always fresh. What can be tested on the pool is tested there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from tests.harness.prefork import SHARDINV
from tests.harness.worker import is_launcher_variable

Launcher = Literal["plain", "torchrun", "spawn", "slurm-env", "mpi-env", "pmi-env"]


class Process(Protocol):
    """A running program: of ``subprocess`` or of ``prefork``."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


@dataclass(frozen=True)
class LaunchResult:
    """How a program ended.

    Parameters
    ----------
    returncode : int
        The launcher's; where each rank is a process of ours, the first that isn't 0.
    stdout, stderr : str
        What was printed; where each rank is a process of ours, rank after rank.
    seconds : float
        From the start to the end of the last process.
    returncodes, stdouts, stderrs : tuple
        The same for each process that was started: one for "plain" and "torchrun".
    ended_at : tuple of float
        ``time.time()`` at which each was seen to have ended, to within 20 ms.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    returncodes: tuple[int, ...]
    stdouts: tuple[str, ...]
    stderrs: tuple[str, ...]
    ended_at: tuple[float, ...]

    def check(self) -> LaunchResult:
        """Return itself if everything ended with 0, or raise with what was printed."""
        __tracebackhide__ = True
        if self.returncode != 0:
            raise AssertionError(
                f"Exit codes {self.returncodes} after {self.seconds:.1f} s\n"
                f"--- stdout ---\n{self.stdout}\n--- stderr ---\n{self.stderr}"
            )
        return self


class LaunchTimeout(AssertionError):
    """Some process was still running when the time was up; all have been killed."""


def launch_script(
    script: Path | str,
    nproc: int = 1,
    *,
    launcher: Launcher = "plain",
    arguments: Sequence[str] = (),
    timeout: float = 120.0,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    fresh: bool = False,
) -> LaunchResult:
    """Run a Python program on ``nproc`` new processes.

    Parameters
    ----------
    script : Path or str
        A file, or, as a string, the code itself (dedented).
    nproc : int
        Number of ranks.
    launcher : str
        "plain": ``python script``, one process. "torchrun": a supervisor that ends all ranks when
        one fails. The others start the ranks with a launcher's environment variables and nobody
        to watch over them: "spawn" with those of torch, "slurm-env" of ``srun``, "mpi-env" of Open
        MPI's ``mpirun``, "pmi-env" of MPICH's; ``MASTER_ADDR`` and ``MASTER_PORT`` are set too.
    arguments : sequence of str
        Command line arguments of the script.
    timeout : float
        Seconds after which everything is killed.
    env : mapping, optional
        Further environment variables; None removes one.
    cwd : Path, optional
        Working directory.
    fresh : bool
        Start an interpreter for each rank, as under "torchrun" in any case, instead of forking from
        a process that has imported shardinv. Variables that Python or the C library reads at the
        start (PYTHONPATH, MALLOC_…) mean something to fresh ones only.

    Raises
    ------
    LaunchTimeout
        With what was printed until then.
    """
    if launcher == "plain" and nproc != 1:
        raise ValueError(f"launcher='plain' starts one process, not {nproc}.")
    with tempfile.TemporaryDirectory(prefix="shardinv-test-launch-") as folder:
        if isinstance(script, str):
            path = Path(folder, "script.py")
            path.write_text(textwrap.dedent(script))
        else:
            path = script.resolve()
        fresh = fresh or launcher == "torchrun"
        command = [sys.executable]
        if launcher == "torchrun":
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={nproc}"]
        command += [str(path), *arguments]
        start = partial(_start, command) if fresh else partial(SHARDINV.fork, path, arguments)
        places: list[dict[str, str]] = [{}]
        if launcher not in ("plain", "torchrun"):
            port = free_port()
            places = [rank_variables(launcher, rank, nproc, port) for rank in range(nproc)]
        environments = [_environment(place, env or {}) for place in places]
        return _run(partial(start, cwd=cwd), environments, Path(folder), timeout)


def free_port() -> int:
    """Return a TCP port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_variables(launcher: Launcher, rank: int, nproc: int, port: int) -> dict[str, str]:
    """Return the variables by which a launcher, on one node, tells a process its rank."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks: tuple[str, ...]
    sizes: tuple[str, ...]
    fixed: dict[str, str] = {}
    if launcher == "spawn":
        ranks, sizes = ("RANK", "LOCAL_RANK"), ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
    elif launcher == "slurm-env":
        ranks, sizes = ("SLURM_PROCID", "SLURM_LOCALID"), ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
        host = socket.gethostname()
        fixed = {
            "SLURM_JOB_ID": "4711",
            "SLURM_STEP_ID": "0",
            "SLURM_NODEID": "0",
            "SLURM_NNODES": "1",
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_TASKS_PER_NODE": str(nproc),
            "SLURM_STEP_TASKS_PER_NODE": str(nproc),
            "SLURM_JOB_NODELIST": host,
            "SLURM_STEP_NODELIST": host,
        }
    elif launcher == "mpi-env":
        ranks, sizes = (
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        )
    elif launcher == "pmi-env":
        ranks, sizes = ("PMI_RANK", "MPI_LOCALRANKID"), ("PMI_SIZE", "MPI_LOCALNRANKS")
    else:
        raise ValueError(f"No variables for launcher={launcher!r}.")
    return master | fixed | dict.fromkeys(ranks, str(rank)) | dict.fromkeys(sizes, str(nproc))


def _environment(place: Mapping[str, str], extra: Mapping[str, str | None]) -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if not is_launcher_variable(name)
    }
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # torch asks for the name of each peer's address; a name server that doesn't answer would cost
    # 5 s a time, and tests measure how fast programs end.
    environment.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
    environment |= place
    for name, value in extra.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def _start(
    command: list[str],
    environment: dict[str, str],
    out: Path,
    err: Path,
    cwd: Path | None,
) -> Process:
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=True,  # Ctrl-C comes to us alone, and we tidy up
        )


def _run(
    start: Callable[[dict[str, str], Path, Path], Process],
    environments: list[dict[str, str]],
    folder: Path,
    timeout: float,
) -> LaunchResult:
    # Files, not pipes: no reader needed, and what a killed process had printed is there.
    outs = [folder / f"{number}.out" for number in range(len(environments))]
    errs = [folder / f"{number}.err" for number in range(len(environments))]
    began = time.monotonic()
    processes: list[Process] = []
    ended_at: dict[int, float] = {}
    try:
        for environment, out, err in zip(environments, outs, errs):
            processes.append(start(environment, out, err))
        while len(ended_at) < len(processes) and time.monotonic() - began < timeout:
            time.sleep(0.02)
            for number, process in enumerate(processes):
                if number not in ended_at and process.poll() is not None:
                    ended_at[number] = time.time()
    finally:
        running = [process.pid for process in processes if process.poll() is None]
        for pid in [*running, *_descendants(running)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in processes:
            process.wait()
    seconds = time.monotonic() - began
    stdouts = tuple(path.read_text(errors="replace") for path in outs)
    stderrs = tuple(path.read_text(errors="replace") for path in errs)
    if len(ended_at) < len(processes):
        late = [number for number in range(len(processes)) if number not in ended_at]
        raise LaunchTimeout(
            f"After {timeout:.0f} s {len(late)} of {len(processes)} processes still ran "
            f"(numbers {late}).\n--- stdout ---\n{''.join(stdouts)}\n"
            f"--- stderr ---\n{''.join(stderrs)}"
        )
    codes = tuple(process.wait() for process in processes)
    return LaunchResult(
        returncode=next((code for code in codes if code != 0), 0),
        stdout="".join(stdouts),
        stderr="".join(stderrs),
        seconds=seconds,
        returncodes=codes,
        stdouts=stdouts,
        stderrs=stderrs,
        ended_at=tuple(ended_at[number] for number in range(len(processes))),
    )


def _descendants(pids: list[int]) -> list[int]:
    """Find the children's children too: ``torchrun`` gives its workers sessions of their own."""
    if not pids:
        return []
    listing = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    layer = pids
    while layer:
        layer = [child for pid in layer for child in children.get(pid, [])]
        found += layer
    return found
