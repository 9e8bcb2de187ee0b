"""What a run of the demo found out. Kept by every rank, complete on rank 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from torch import Tensor

from shardinv.cli.demo.track import Track
from shardinv.geometry import TileGrid


@dataclass(frozen=True)
class Check:
    """Distance from the undistributed run, after each iteration.

    Attributes
    ----------
    psnr_differences
        In dB.
    relative_errors
        Euclidean distance of the iterates over the norm of the undistributed one.
    seconds
        What each of its iterations took, on rank 0 alone with all cores.
    """

    psnr_differences: list[float]
    relative_errors: list[float]
    seconds: list[float]


@dataclass
class Outcome:
    """Images ``(1, C, H, W)`` on the CPU, figures of merit, and the account of messages.

    ``mesh`` and ``box`` say, of a sharded image, how many boxes there are along each axis and what
    shape the largest has; ``resumed_after`` how many iterations an earlier run did.
    """

    frame: Tensor
    bicubic: Tensor
    bicubic_db: float
    start_db: float
    step: float
    sigmas: list[float]
    ranks: int
    backend: str | None
    device: str
    threads: int
    tiles: TileGrid
    imbalance: float
    setup_seconds: float = 0.0
    reconstructing: Track = field(default_factory=Track)
    without_denoiser: Track = field(default_factory=Track)
    tracks: list[Track] = field(default_factory=list)
    check: Check | None = None
    mesh: tuple[int, ...] | None = None
    box: tuple[int, ...] | None = None
    resumed_after: int = 0
    reconstruction: Tensor | None = None

    @property
    def reconstruction_db(self) -> float:
        """PSNR of the last iterate."""
        return self.reconstructing.psnr_db[-1]

    @property
    def seconds_per_iteration(self) -> float:
        """Median, without the first iteration, in which memory is fetched and shapes agreed on."""
        seconds = self.reconstructing.seconds
        return median(seconds[1:] or seconds)

    @property
    def bytes_per_iteration(self) -> int:
        """What the rank that sends most sends in an iteration, the first one excepted."""
        return max(track.last_bytes for track in self.tracks)
