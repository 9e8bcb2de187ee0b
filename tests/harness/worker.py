"""What runs inside one worker process of the pool: join the group, then do one job after another.

The other half, which starts, watches and kills these processes, is in ``pool``.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.harness.outcome import FailedRank, qualified_name
from tests.harness.references import FunctionReference

#: Variables by which launchers tell a process its rank: a worker's place comes from the pool alone.
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
LAUNCHER_PREFIXES = (
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PMI2_",
    "MPI_LOCAL",
    "MV2_",
    "TORCHELASTIC_",
)

#: A warning filter as :func:`warnings.filterwarnings` takes it.
WarningFilter = tuple[str, str, type[Warning], str, int]


@dataclass(frozen=True)
class WorkerSetup:
    """Where a worker belongs and whom it talks to."""

    rank: int
    world_size: int
    store_path: str
    group_timeout: float
    log_path: str
    stack_path: str
    context_factory: FunctionReference


@dataclass(frozen=True)
class Job:
    """One function for every rank to run; ``arguments`` is a pickle of ``(args, kwargs)``."""

    function: FunctionReference
    arguments: bytes
    seed: int
    context: dict[str, Any] = field(default_factory=dict)
    filters: tuple[WarningFilter, ...] = ()
    sys_path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Returned:
    """A function's result on one rank, pickled so that the pool decides when to rebuild it."""

    value: bytes


def shardinv_context(process_group: dist.ProcessGroup | None, **options: Any) -> Any:
    """Build the context that functions under test get as their first argument."""
    from shardinv import DistributedContext

    return DistributedContext(
        process_group=process_group, device_mode="cpu", cleanup=False, **options
    )


def is_launcher_variable(name: str) -> bool:
    """Whether an environment variable tells a process its place among others."""
    return name in LAUNCHER_VARIABLES or name.startswith(LAUNCHER_PREFIXES)


def main(pipe: Connection, setup: WorkerSetup) -> None:
    """Serve jobs until the pool says stop or goes away.

    The talk with the pool, all pickles: ``"ready"`` out; then a :class:`Job` in, a
    :class:`Returned` or :class:`FailedRank` out; after a job that went well on every rank,
    ``"settle"`` in and None or a :class:`FailedRank` out; ``"stop"`` in.
    """
    stacks = _prepare_process(setup)
    try:
        group = _join_group(setup)
        factory = setup.context_factory.resolve()
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(_rank_error(error, error.__traceback__)))
        raise
    pipe.send_bytes(pickle.dumps("ready"))
    manager: Any = None
    while True:
        try:
            request = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):  # the pool has gone
            os._exit(1)
        if request == "stop":
            break
        if request == "settle":
            answer: Any = _settle(manager, group)
            manager = None
        else:
            manager, answer = _do(request, factory, group)
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.send_bytes(pickle.dumps(answer))
    stacks.close()
    if group is not None:
        dist.destroy_process_group()


def _prepare_process(setup: WorkerSetup) -> Any:
    log = os.open(setup.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # Ctrl-C reaches the whole terminal; ending the workers is the pool's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stacks = open(setup.stack_path, "w")  # noqa: SIM115 - as long as the process lives
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    for name in list(os.environ):
        if is_launcher_variable(name):
            del os.environ[name]
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_pool, daemon=True).start()
    return stacks


def _end_with_the_pool() -> None:
    """End this process when the one that runs pytest does, also amid a collective that hangs."""
    pytest_process = parent_process()
    assert pytest_process is not None
    pytest_process.join()
    os._exit(1)


def _join_group(setup: WorkerSetup) -> dist.ProcessGroup | None:
    if setup.world_size == 1:
        return None
    # A file, not a TCPStore: each connection of that asks for the host's name, and where the name
    # server is slow that costs seconds, once in a while, at every test that clones the store.
    store = dist.FileStore(setup.store_path, -1)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=setup.rank,
        world_size=setup.world_size,
        timeout=timedelta(seconds=setup.group_timeout),
    )
    return dist.group.WORLD


def _do(
    job: Job, factory: Callable[..., Any], group: dist.ProcessGroup | None
) -> tuple[Any, Returned | FailedRank]:
    """Run one job in a state that owes nothing to the job before."""
    manager: Any = None
    try:
        sys.path[:] = job.sys_path
        function = job.function.resolve()
        args, kwargs = pickle.loads(job.arguments)
        with warnings.catch_warnings():
            _apply(job.filters)
            manager = factory(group, **job.context)
            context = manager.__enter__()  # left when every rank has returned, see _settle
            _reset_torch(job.seed)
            try:
                value = function(context, *args, **kwargs)
            finally:
                _reset_torch(job.seed)
        return manager, Returned(_pickle_result(value))
    except BaseException as error:  # SystemExit and pytest.fail's exception too
        start = error.__traceback__
        inner = start.tb_next if start is not None else None
        return manager, _rank_error(error, inner or start)


def _settle(manager: Any, group: dist.ProcessGroup | None) -> FailedRank | None:
    """Leave the context, and prove that no rank owes another a message."""
    try:
        manager.__exit__(None, None, None)
        if group is not None:
            dist.barrier(group)
    except BaseException as error:
        return _rank_error(error, error.__traceback__)
    return None


def _apply(filters: tuple[WarningFilter, ...]) -> None:
    warnings.resetwarnings()
    for action, message, category, module, line in reversed(filters):
        warnings.filterwarnings(action, message, category, module, line)  # type: ignore[arg-type]


def _reset_torch(seed: int) -> None:
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _pickle_result(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"The result of a function sent to the workers travels back as a pickle, and this "
            f"{type(value).__name__} can't: {error}. Return tensors and plain data."
        ) from error


def _rank_error(error: BaseException, start: TracebackType | None) -> FailedRank:
    return FailedRank(
        kind="raised",
        type_name=type(error).__qualname__,
        message=str(error),
        traceback="".join(traceback.format_exception(type(error), error, start)),
        bases=tuple(qualified_name(base) for base in type(error).__mro__),
    )
