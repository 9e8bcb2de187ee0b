"""What the published runs spent on communication, by their profiler."""

from __future__ import annotations

from dataclasses import dataclass

from shardinv.study.published.rows import rows


@dataclass(frozen=True)
class PublishedCommunication:
    """One run under the profiler.

    Parameters
    ----------
    problem
        Its kind and size in pixels or voxels.
    workers
        GPUs.
    tiled
        Whether the network ran on tiles; if not, on the whole image.
    compute, communication
        Seconds of an iteration in kernels of each kind; waiting for slower ranks is part of
        communication.
    seconds
        Of the whole iteration.
    """

    problem: str
    workers: int
    tiled: bool
    compute: float
    communication: float
    seconds: float

    @property
    def share(self) -> float:
        """Of communication in both."""
        return self.communication / (self.compute + self.communication)


def published_communication() -> list[PublishedCommunication]:
    """All runs, by problem and number of workers."""
    return [
        PublishedCommunication(
            problem=row["problem"].replace("x", "×"),
            workers=int(row["gpus"]),
            tiled=row["mode"] == "distributed",
            compute=float(row["compute_s"]),
            communication=float(row["communication_s"]),
            seconds=float(row["iteration_s"]),
        )
        for row in rows("communication.csv")
    ]
