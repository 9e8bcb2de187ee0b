"""What the launcher says about this process: its rank, how many there are, where they meet.

Recognised are ``torchrun`` (and anything that sets its variables), SLURM's ``srun``, and the
launchers of Open MPI, MPICH and Intel MPI. Without one of them there is a single process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """This process's place among all processes of a run."""

    launcher: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29500


def detect_launch(env: Mapping[str, str]) -> Launch:
    """Read the launcher's variables.

    Parameters
    ----------
    env
        The environment, as ``os.environ``.

    Raises
    ------
    RuntimeError
        If a launcher is recognised but does not say all that is needed.
    """
    # Open MPI before SLURM: inside a job it starts its daemons by srun, whose variables the
    # processes inherit.
    for read in (_torchrun, _open_mpi, _slurm, _pmi):
        launch = read(env)
        if launch is not None:
            if not 0 <= launch.rank < launch.world_size:
                raise RuntimeError(
                    f"{launch.launcher} gives rank {launch.rank} of {launch.world_size} processes; "
                    "the rank must lie in 0 .. processes - 1. Check the launcher's variables"
                )
            return launch
    return Launch("none")


def _torchrun(env: Mapping[str, str]) -> Launch | None:
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return None
    rank, size = _number(env, "RANK", "torchrun"), _number(env, "WORLD_SIZE", "torchrun")
    return Launch(
        "torchrun",
        rank,
        size,
        _number(env, "LOCAL_RANK", "torchrun", rank),
        _number(env, "LOCAL_WORLD_SIZE", "torchrun", size),
        env.get("MASTER_ADDR") or "127.0.0.1",
        _number(env, "MASTER_PORT", "torchrun", 29500),
    )


def _slurm(env: Mapping[str, str]) -> Launch | None:
    # A batch script's own shell has SLURM_PROCID and SLURM_NTASKS too, and is one process: only
    # srun starts a step with a number of tasks.
    if "SLURM_PROCID" not in env or "SLURM_STEP_NUM_TASKS" not in env:
        return None
    rank = _number(env, "SLURM_PROCID", "srun")
    size = _number(env, "SLURM_STEP_NUM_TASKS", "srun")
    if _number(env, "PMI_SIZE", "MPICH", size) != size:
        # MPICH starts its proxies by srun, and those the processes.
        return None
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or ""
    per_node = env.get("SLURM_STEP_TASKS_PER_NODE", str(size))
    local_size = re.match(r"\d+", per_node)
    # Every job picks its own port, so that two jobs on one node do not meet.
    port = 20000 + _number(env, "SLURM_JOB_ID", "srun", 0) % 20000
    return Launch(
        "srun",
        rank,
        size,
        _number(env, "SLURM_LOCALID", "srun"),
        int(local_size.group()) if local_size else size,
        env.get("MASTER_ADDR") or first_host(nodes) or "127.0.0.1",
        _number(env, "MASTER_PORT", "srun", port),
    )


def _open_mpi(env: Mapping[str, str]) -> Launch | None:
    if "OMPI_COMM_WORLD_RANK" not in env:
        return None
    size = _number(env, "OMPI_COMM_WORLD_SIZE", "Open MPI")
    local_size = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI", size)
    return Launch(
        "Open MPI",
        _number(env, "OMPI_COMM_WORLD_RANK", "Open MPI"),
        size,
        _number(env, "OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI"),
        local_size,
        _mpi_address(env, size, local_size, "Open MPI"),
        _number(env, "MASTER_PORT", "Open MPI", 29500),
    )


def _pmi(env: Mapping[str, str]) -> Launch | None:
    if "PMI_RANK" not in env or "PMI_SIZE" not in env:
        return None
    rank, size = _number(env, "PMI_RANK", "MPICH"), _number(env, "PMI_SIZE", "MPICH")
    local_size = _number(env, "PMI_LOCAL_SIZE", "MPICH", size)
    local_size = _number(env, "MPI_LOCALNRANKS", "MPICH", local_size)
    local = _number(env, "PMI_LOCAL_RANK", "MPICH", rank % max(local_size, 1))
    return Launch(
        "MPICH",
        rank,
        size,
        _number(env, "MPI_LOCALRANKID", "MPICH", local),
        local_size,
        _mpi_address(env, size, local_size, "MPICH"),
        _number(env, "MASTER_PORT", "MPICH", 29500),
    )


def _mpi_address(env: Mapping[str, str], size: int, local_size: int, launcher: str) -> str:
    address = env.get("MASTER_ADDR")
    if address:
        return address
    if local_size < size:
        raise RuntimeError(
            f"{launcher} started {size} processes on several nodes but does not say where they "
            "meet: set MASTER_ADDR to the host name of rank 0 (mpirun -x MASTER_ADDR=...)"
        )
    return "127.0.0.1"


def _number(env: Mapping[str, str], name: str, launcher: str, default: int | None = None) -> int:
    value = env.get(name)
    if not value and default is not None:
        return default
    if value is None or not re.fullmatch(r"\d+", value.strip()):
        raise RuntimeError(
            f"started by {launcher}, but its variable {name} is "
            f"{'not set' if value is None else repr(value)}; a whole number is needed"
        )
    return int(value)


def first_host(nodes: str) -> str | None:
    """The first host of SLURM's compact list of nodes.

    Examples
    --------
    >>> first_host("gpu[07-09,12],login1")
    'gpu07'
    >>> first_host("node3")
    'node3'
    """
    host = re.match(r"(?:[^,\[\s]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", host.group()) if host else None
