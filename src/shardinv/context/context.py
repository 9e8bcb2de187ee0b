"""The distributed context: brings the ranks together, and lets them go."""

from __future__ import annotations

import contextlib
import os
import random
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from shardinv.context.checkpoints import Checkpoints
from shardinv.context.environment import Launch, detect_launch
from shardinv.context.failure import FailureWatch
from shardinv.context.images import ImageLayouts
from shardinv.context.rendezvous import meeting_store
from shardinv.exchange import Communicator, agree, all_reduce, barrier, broadcast, publish
from shardinv.geometry import deal
from shardinv.ledger import Ledger

_contexts_of_group: dict[str, int] = {}


class DistributedContext(ImageLayouts, Checkpoints):
    """The processes that work on one reconstruction together.

    Used as a context manager. On entering, the launcher is recognised (``torchrun``, ``srun``, Open
    MPI, MPICH, or none), the processes are brought together, and each gets its device. On leaving,
    they are let go. An exception on one rank ends every rank within seconds, with that rank's
    message.

    Parameters
    ----------
    backend
        ``"nccl"``, ``"gloo"``, or None to choose: NCCL where every process of a node has a GPU of
        its own, else gloo.
    cleanup
        Whether to end the process group on leaving, where this context started it.
    seed
        Seed of torch, NumPy and Python on every rank, at least 0; None leaves them alone.
    seed_offset
        Whether rank ``r`` gets ``seed + r`` (different random numbers on every rank) or ``seed``
        (the same on all).
    deterministic
        Whether to ask cuDNN for deterministic algorithms.
    device_mode
        ``"cpu"``, ``"gpu"``, or None for a GPU where there is one.
    process_group
        Use these ranks, of a group made elsewhere, instead of making one.
    timeout
        How long a rank waits for another: seconds or a ``timedelta``. Default 300 s, or the
        environment's ``SHARDINV_TIMEOUT`` in seconds.
    debug
        Whether to compare shapes, types *and values* of what must be the same on every rank at
        every call, not shapes and types at first use only. Slow. Default: the environment's
        ``SHARDINV_DEBUG``.

    Attributes
    ----------
    rank, world_size
        This process's rank, and how many there are.
    local_rank
        Rank within the node.
    device
        Where this rank's tensors belong.
    backend
        ``"nccl"``, ``"gloo"``, or None with a single process.
    ledger
        The account of this rank's messages.

    Raises
    ------
    ValueError
        If an option is not one of those named here.
    RuntimeError
        If a GPU or backend that was asked for is not there, or the launcher's variables are broken.

    Examples
    --------
    >>> from shardinv import DistributedContext
    >>> with DistributedContext(seed=0) as ctx:
    ...     print(f"rank {ctx.rank} of {ctx.world_size}")
    rank 0 of 1
    """

    def __init__(
        self,
        backend: str | None = None,
        cleanup: bool = True,
        seed: int | None = None,
        seed_offset: bool = True,
        deterministic: bool = False,
        device_mode: str | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | timedelta | None = None,
        debug: bool | None = None,
    ) -> None:
        if backend not in (None, "nccl", "gloo"):
            raise ValueError(f"backend must be 'nccl', 'gloo' or None, got {backend!r}")
        if device_mode not in (None, "cpu", "gpu"):
            raise ValueError(f"device_mode must be 'cpu', 'gpu' or None, got {device_mode!r}")
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise ValueError(f"seed must be a whole number of at least 0 or None, got {seed!r}")
        self._backend_wanted = backend
        self.cleanup = cleanup
        self.seed = seed
        self.seed_offset = seed_offset
        self.deterministic = deterministic
        self.device_mode = device_mode
        self.timeout = _timeout(timeout)
        self.debug = (
            debug if debug is not None else os.environ.get("SHARDINV_DEBUG", "") not in ("", "0")
        )
        self._group_given = process_group
        self._owns_group = False
        self._watch: FailureWatch | None = None
        self._store: Store | None = None
        self.rank = 0
        self.world_size = 1
        self.local_rank = 0
        self.device = torch.device("cpu")
        self.comm = Communicator(0, 1, self.device, timeout=self.timeout)

    # -- entering and leaving --------------------------------------------------------------------

    def __enter__(self) -> DistributedContext:
        launch = detect_launch(os.environ)
        given = self._group_given
        if given is not None or dist.is_initialized():
            self.rank = dist.get_rank(given)
            self.world_size = dist.get_world_size(given)
        else:
            self.rank, self.world_size = launch.rank, launch.world_size
        self.local_rank = launch.local_rank if launch.launcher != "none" else self.rank
        gpus_per_process = self._choose_device(launch)
        if given is None and not dist.is_initialized() and self.world_size > 1:
            self._start_group(launch, gpus_per_process)
        self.comm = self._communicator()
        self._seed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        watch, self._watch = self._watch, None
        if watch is not None and failed and error is not None:
            watch.report(error)
        elif watch is not None:
            try:
                watch.meet(self.timeout)
            finally:
                watch.stop()
        if self._owns_group and (self.cleanup or failed) and dist.is_initialized():
            # Broken connections wake the ranks that wait for this one; they find its message.
            self.comm.group = None
            _abandon_group() if failed else dist.destroy_process_group()
            self._owns_group = False
        if watch is not None and failed:
            watch.linger()

    def _choose_device(self, launch: Launch) -> bool:
        """Choose this rank's device; returns whether every process of the node has its own GPU."""
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device_mode == "gpu" and gpus == 0:
            raise RuntimeError(
                "device_mode='gpu' was asked for, but torch sees no GPU; use device_mode='cpu' or "
                "None, or check the driver and CUDA_VISIBLE_DEVICES"
            )
        if self.device_mode == "cpu" or gpus == 0:
            self.device = torch.device("cpu")
            return False
        # A launcher that shows each process its own GPU alone numbers it 0.
        self.device = torch.device("cuda", self.local_rank % gpus)
        torch.cuda.set_device(self.device)
        return gpus >= launch.local_world_size or (gpus == 1 and _one_gpu_each())

    def _start_group(self, launch: Launch, gpu_each: bool) -> None:
        backend = self._backend_wanted
        if backend is None:
            nccl = self.device.type == "cuda" and gpu_each and dist.is_nccl_available()
            backend = "nccl" if nccl else "gloo"
        if backend == "nccl" and self.device.type != "cuda":
            raise RuntimeError(
                "backend='nccl' needs a GPU on every rank; use backend='gloo' or None"
            )
        os.environ.setdefault("MASTER_ADDR", launch.master_addr)
        os.environ.setdefault("MASTER_PORT", str(launch.master_port))
        dist.init_process_group(
            backend,
            store=meeting_store(launch, self.timeout),
            rank=self.rank,
            world_size=self.world_size,
            timeout=self.timeout,
        )
        self._owns_group = True

    def _communicator(self) -> Communicator:
        comm = Communicator(
            self.rank,
            self.world_size,
            self.device,
            ledger=Ledger(),
            timeout=self.timeout,
            debug=self.debug,
        )
        if self.world_size == 1 or not dist.is_initialized():
            return comm
        group = self._group_given or dist.group.WORLD
        assert group is not None
        name = str(group.group_name)
        number = _contexts_of_group[name] = _contexts_of_group.get(name, -1) + 1
        store = dist.distributed_c10d._get_default_store()
        self._store = PrefixStore(f"shardinv/{name}/{number}", store)
        self._watch = FailureWatch(
            self._store,
            self.rank,
            self.world_size,
            owns_process=self._owns_group,
            waiting=lambda: comm.waiting,
        )
        self._watch.start()
        comm.group = group
        comm.backend = str(dist.get_backend(group))
        comm.store = self._store
        comm.failures = self._watch
        return comm

    def _seed(self) -> None:
        if self.deterministic:
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False
        if self.seed is not None:
            seed = self.seed + (self.rank if self.seed_offset else 0)
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)

    # -- what it tells ---------------------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that writes files and prints."""
        return self.rank == 0

    @property
    def use_dist(self) -> bool:
        """Whether there is more than one process."""
        return self.world_size > 1

    @property
    def backend(self) -> str | None:
        """The backend in use; None with a single process."""
        return self.comm.backend

    @property
    def ledger(self) -> Ledger:
        """The account of this rank's messages."""
        return self.comm.ledger

    def get_backend(self) -> str | None:
        """The backend in use; None with a single process."""
        return self.comm.backend

    def local_indices(self, num_items: int) -> list[int]:
        """The items that this rank takes when ``num_items`` of equal cost are dealt."""
        return list(deal([1.0] * num_items, self.world_size)[self.rank])

    # -- messages for a user's own script --------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every rank is here."""
        barrier(self.comm)

    def all_reduce(
        self, x: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None
    ) -> torch.Tensor:
        """Combine ``x`` over the ranks, in place, and return it.

        Parameters
        ----------
        x
            Same shape and type on every rank.
        op
            Sum, average, maximum or minimum, as torch's ``ReduceOp`` or by name.
        group
            For compatibility, here and below: this context's ranks (None) are the only value.
        """
        self._check_group(group)
        names: dict[Any, str] = {
            dist.ReduceOp.SUM: "sum",
            dist.ReduceOp.AVG: "mean",
            dist.ReduceOp.MAX: "max",
            dist.ReduceOp.MIN: "min",
        }
        name = op if isinstance(op, str) else names.get(op)
        if name is None:
            raise ValueError(f"all_reduce knows sum, mean, max and min, got {op}")
        with torch.no_grad():
            total = all_reduce(self.comm, x, name)
            if total.data_ptr() != x.data_ptr():
                x.copy_(total)
        return x

    def broadcast(self, x: torch.Tensor, src: int = 0, group: Any = None) -> torch.Tensor:
        """Give every rank the values of ``x`` of rank ``src``, in place, and return it."""
        self._check_group(group)
        with torch.no_grad():
            values = broadcast(self.comm, x, src)
            if values.data_ptr() != x.data_ptr():
                x.copy_(values)
        return x

    def all_gather(self, x: torch.Tensor, group: Any = None) -> torch.Tensor:
        """Stack ``x`` of every rank along a new first axis. Same shape and type on every rank."""
        self._check_group(group)
        from shardinv.exchange import TensorSpec, gather_tensors

        rows = gather_tensors(self.comm, [x], [[TensorSpec.of(x)]] * self.world_size)
        return torch.stack([row[0] for row in rows])

    def all_gather_object(self, obj_list: list[Any], obj: Any, group: Any = None) -> None:
        """Fill ``obj_list``, of one entry a rank, with every rank's ``obj``."""
        self._check_group(group)
        obj_list[:] = publish(self.comm, "an object to gather", obj)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """The object of rank ``src``, on every rank (anything that pickles)."""
        mine = obj if self.rank == src else None
        return publish(self.comm, "an object to broadcast", mine)[src]

    def broadcast_object_list(
        self, object_list: list[Any], src: int = 0, device: torch.device | None = None
    ) -> None:
        """Replace the entries of ``object_list`` by those of rank ``src``.

        ``device`` is accepted for compatibility and has no effect: objects travel as bytes.
        """
        object_list[:] = self.broadcast_object(object_list, src)

    def _check_group(self, group: Any) -> None:
        if group is not None and group is not self.comm.group:
            raise ValueError(
                "group must be None or the group of this context: for some of the ranks only, make "
                "a context of theirs, DistributedContext(process_group=group)"
            )

    def check_same(self, what: str, value: Any, hint: str) -> None:
        """Raise on every rank unless all hold an equal small value (shapes, options, a digest)."""
        agree(self.comm, what, value, hint)

    # -- copies ----------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedContext:
        """A copy of what holds a context works with the same ranks: there are no others."""
        return self

    def __copy__(self) -> DistributedContext:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a DistributedContext holds connections to other processes and cannot be pickled. Save "
            "state_dict() (its keys are those of the undistributed object), or distribute anew "
            "after loading"
        )

    def __repr__(self) -> str:
        return (
            f"DistributedContext(rank={self.rank}, world_size={self.world_size}, "
            f"device={str(self.device)!r}, backend={self.backend!r})"
        )


def _timeout(given: float | timedelta | None) -> timedelta:
    name = "timeout"
    value: Any = given
    if given is None:
        name, value = "SHARDINV_TIMEOUT", os.environ.get("SHARDINV_TIMEOUT", "300")
    try:
        timeout = value if isinstance(value, timedelta) else timedelta(seconds=float(value))
    except (ValueError, OverflowError):
        timeout = timedelta(0)
    if timeout <= timedelta(0):
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return timeout


def _one_gpu_each() -> bool:
    """Whether the launcher shows this process a single GPU, as SLURM's --gpus-per-task does."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return bool(visible) and "," not in visible and "SLURM_STEP_ID" in os.environ


def _abandon_group() -> None:
    """Break the connections so that no rank waits for this one, without waiting for any.

    NCCL's are aborted. Gloo's close when nothing refers to the group any more.
    """
    # The process is ending on an error of its own, which is the one to be shown.
    with contextlib.suppress(Exception):
        if dist.get_backend() == "nccl" and dist.group.WORLD is not None:
            dist.group.WORLD.abort()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
