"""What was measured of a point: plain data, as it stands in the files of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardinv.study.analysis.agreement import Agreement
from shardinv.study.analysis.communication import Cost
from shardinv.study.analysis.factors import Iteration, Work
from shardinv.study.analysis.timeline import Span
from shardinv.study.plan.point import Point


@dataclass(frozen=True)
class Memory:
    """The most bytes of one rank above what was there before the first iteration.

    Parameters
    ----------
    resident
        In main memory, of a rank on the CPU; None on a GPU, or where the system doesn't say.
    allocated, reserved
        In tensors on the GPU, and in what its allocator holds; None on the CPU.
    """

    resident: int | None = None
    allocated: int | None = None
    reserved: int | None = None

    @property
    def most(self) -> int | None:
        """Tensors on the GPU, or resident in main memory."""
        return self.resident if self.allocated is None else self.allocated


@dataclass(frozen=True)
class Energy:
    """Of all iterations and ranks.

    Parameters
    ----------
    joules
        Of the GPUs, or of the processors of all hosts, everything that ran on them.
    source
        ``NVML`` or ``RAPL``.
    """

    joules: float
    source: str


@dataclass(frozen=True)
class Kernels:
    """One iteration of one rank under PyTorch's profiler, which slows it down.

    Parameters
    ----------
    seconds
        Of the iteration.
    compute
        In which a kernel ran (on the CPU: an operation of PyTorch).
    communication
        In which the rank did nothing but communicate: kernels of NCCL that no other kernel runs
        beside; on the CPU exposed operations of the ledger.
    longest
        The kernels that take most: name, calls, seconds.
    """

    seconds: float
    compute: float
    communication: float
    longest: list[tuple[str, int, float]]

    @property
    def gaps(self) -> float:
        """In which nothing ran: the host prepares the next kernel."""
        return max(0.0, self.seconds - self.compute - self.communication)


@dataclass
class Measurement:
    """What a point gave.

    Parameters
    ----------
    point
        The settings.
    psnr_db
        Of the start and after each iteration, in dB; of training, after each step, on its sample.
    ssim
        The same; empty unless the point asks for quality.
    agreement
        With each reference run at each iteration, the start first: ``untiled``, undistributed
        DeepInverse; ``tiled``, the same tiles on one rank. Empty unless the point asks for quality.
    iterations
        By iteration, then by rank. Of the peer, whose messages are not noted, communication is part
        of the stage that it is in.
    costs
        By rank, what each kind of operation has cost in all iterations.
    work
        Of the network; None where it isn't known.
    memory
        By rank.
    energy
        None where nothing tells it.
    kernels
        By rank; empty where no profile was taken.
    timeline
        By rank, a typical iteration.
    machine
        Where and with what it was measured.
    """

    point: Point
    psnr_db: list[float]
    ssim: list[float]
    agreement: dict[str, list[Agreement]]
    iterations: list[list[Iteration]]
    costs: list[list[Cost]]
    work: Work | None
    memory: list[Memory]
    energy: Energy | None = None
    kernels: list[Kernels] = field(default_factory=list)
    timeline: list[list[Span]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> list[float]:
        """Of each iteration, on its slowest rank."""
        return [max(rank.total for rank in row) for row in self.iterations]

    def record(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**asdict(self), "point": self.point.model_dump(mode="json")}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Measurement:
        """What :meth:`record` gave."""
        work, energy = record["work"], record["energy"]
        return cls(
            point=Point(**record["point"]),
            psnr_db=list(record["psnr_db"]),
            ssim=list(record["ssim"]),
            agreement={
                name: [Agreement(**each) for each in found]
                for name, found in record["agreement"].items()
            },
            iterations=[[Iteration(**rank) for rank in row] for row in record["iterations"]],
            costs=[[Cost(**cost) for cost in rank] for rank in record["costs"]],
            work=None if work is None else Work(**{**work, "by_rank": tuple(work["by_rank"])}),
            memory=[Memory(**rank) for rank in record["memory"]],
            energy=None if energy is None else Energy(**energy),
            kernels=[
                Kernels(**{**rank, "longest": [tuple(each) for each in rank["longest"]]})
                for rank in record["kernels"]
            ],
            timeline=[[Span(**span) for span in rank] for rank in record["timeline"]],
            machine=dict(record["machine"]),
        )
