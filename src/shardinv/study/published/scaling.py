"""The published strong-scaling study, with efficiencies by our formulas."""

from __future__ import annotations

from dataclasses import dataclass

from shardinv.study.analysis.efficiency import Scaling, scaling
from shardinv.study.published.rows import rows

# What the network processed: windows of an inner tile of 448 px and a halo of 32 px on each side.
WINDOW = 448 + 2 * 32


@dataclass(frozen=True)
class PublishedPoint:
    """One line of the strong-scaling study.

    Parameters
    ----------
    side
        Of the square image, in pixels.
    workers
        GPUs.
    tiled
        Whether the network ran on tiles; if not, on the whole image.
    physics, denoise, other
        Seconds of an iteration in each stage. ``other`` is mostly the scoring of the iterate, which
        was timed with it.
    seconds
        Of the whole iteration.
    work
        Pixels processed by the network over those of the image.
    printed
        Efficiency and work-normalised efficiency as published, in per cent.
    """

    side: int
    workers: int
    tiled: bool
    physics: float
    denoise: float
    other: float
    seconds: float
    work: float
    printed: tuple[float, float]

    @property
    def tiles(self) -> int:
        """How many windows the network processed."""
        return round(self.work * self.side**2 / WINDOW**2) if self.tiled else 1


def published_points() -> list[PublishedPoint]:
    """The strong-scaling study, by size and number of workers."""
    return [
        PublishedPoint(
            side=int(row["image_side_px"]),
            workers=int(row["gpus"]),
            tiled=row["mode"] == "distributed",
            physics=float(row["physics_s"]),
            denoise=float(row["denoise_s"]),
            other=float(row["other_s"]),
            seconds=float(row["iteration_s"]),
            work=float(row["work_multiplier"]),
            printed=(
                float(row["efficiency_pct"]),
                float(row["work_normalised_efficiency_pct"]),
            ),
        )
        for row in rows("strong_scaling.csv")
    ]


def published_scaling() -> dict[int, list[tuple[PublishedPoint, Scaling]]]:
    """Each size's points with their scaling, by our formulas, from its fewest workers."""
    found: dict[int, list[tuple[PublishedPoint, Scaling]]] = {}
    baselines: dict[int, PublishedPoint] = {}
    for point in published_points():
        first = baselines.setdefault(point.side, point)
        found.setdefault(point.side, []).append(
            (
                point,
                scaling(
                    point.seconds,
                    point.workers,
                    point.work,
                    baseline_seconds=first.seconds,
                    baseline_workers=first.workers,
                    baseline_work=first.work,
                ),
            )
        )
    return found
