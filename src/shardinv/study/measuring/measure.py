"""Measures a point: every rank iterates, and rank 0 brings together what each has noted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from shardinv.ledger import Event
from shardinv.problems import psnr
from shardinv.study.analysis.communication import Cost
from shardinv.study.analysis.factors import Iteration, Work
from shardinv.study.analysis.timeline import Stamps, costs, iterations
from shardinv.study.measuring.build import Blocks, build, context
from shardinv.study.measuring.memory import peak, restart_peak
from shardinv.study.plan.point import Point


@dataclass
class Measurement:
    """What a point gave.

    Parameters
    ----------
    point
        The settings.
    psnr_db
        Of the start and after each iteration, in dB.
    iterations
        By iteration, then by rank. Of the peer, whose messages are not noted, communication is part
        of the stage that it is in.
    costs
        By rank, what each kind of operation has cost in all iterations.
    work
        Of the network; None where it isn't known.
    peak_bytes
        By rank: of the device's memory on a GPU, resident in main memory on a CPU, above what was
        there before the first iteration; None where the system does not say.
    """

    point: Point
    psnr_db: list[float]
    iterations: list[list[Iteration]]
    costs: list[list[Cost]]
    work: Work | None
    peak_bytes: list[int | None]

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
        work = record["work"]
        return cls(
            Point(**record["point"]),
            list(record["psnr_db"]),
            [[Iteration(**rank) for rank in row] for row in record["iterations"]],
            [[Cost(**cost) for cost in rank] for rank in record["costs"]],
            None if work is None else Work(**{**work, "by_rank": tuple(work["by_rank"])}),
            list(record["peak_bytes"]),
        )


def measure(point: Point) -> Measurement | None:
    """Measure a point on this rank; what all ranks noted is given on rank 0, None on the others.

    Scoring is between iterations, outside their time.
    """
    with context(point) as ctx, torch.no_grad():
        blocks = build(point, ctx)
        gpu = blocks.truth.device.type == "cuda"
        before = restart_peak(gpu)
        with _tracing(ctx, point) as events:
            stamps, quality = _iterate(blocks, gpu)
        most = peak(gpu)
        above = None if most is None or before is None else max(0, most - before)
        mine = (stamps, list(events), above)
        told = [mine]
        if ctx is not None and ctx.world_size > 1:
            told = [mine] * ctx.world_size
            ctx.all_gather_object(told, mine)
            if ctx.rank:
                return None
    rows, traces, peaks = zip(*told, strict=True)
    return Measurement(
        point, quality, iterations(rows, traces), costs(rows, traces), blocks.work, list(peaks)
    )


def _iterate(blocks: Blocks, gpu: bool) -> tuple[list[Stamps], list[float]]:
    def now() -> float:
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    x, stamps, quality = blocks.start, [], [psnr(blocks.start, blocks.truth)]
    for sigma in blocks.sigmas:
        start = now()
        x = x - blocks.step * blocks.fidelity.grad(x, blocks.y, blocks.physics)
        physics = now()
        x = blocks.denoiser(x, sigma)
        denoiser = now()
        stamps.append(Stamps(start, physics, denoiser, now()))
        quality.append(psnr(x, blocks.truth))
    return stamps, quality


def _tracing(ctx: Any, point: Point) -> contextlib.AbstractContextManager[Sequence[Event]]:
    if point.system == "shardinv":
        tracing: contextlib.AbstractContextManager[Sequence[Event]] = ctx.ledger.tracing()
        return tracing
    return contextlib.nullcontext([])
