"""Measures a point: every rank iterates, and rank 0 brings together what each has noted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from shardinv.denoise.strides import network_stride
from shardinv.exchange import host_identity
from shardinv.ledger import Event
from shardinv.study.analysis.statistics import warm_up
from shardinv.study.analysis.timeline import Stamps, costs, iterations, spans
from shardinv.study.measurement import Energy, Kernels, Measurement, Memory
from shardinv.study.measuring.build import build, context
from shardinv.study.measuring.clocks import clock_offsets
from shardinv.study.measuring.energy import EnergyMeter, total
from shardinv.study.measuring.memory import PeakMemory
from shardinv.study.measuring.profile import profile
from shardinv.study.measuring.scoring import Files, Scorer
from shardinv.study.measuring.tasks import Task, task_of
from shardinv.study.measuring.work import PixelCounter, work_from
from shardinv.study.plan.point import Point


@dataclass
class _Notes:
    """What one rank noted."""

    stamps: list[Stamps]
    events: list[Event]
    memory: Memory
    energy: Energy | None
    kernels: Kernels | None
    pixels: tuple[int, int] | None


def measure(point: Point, files: Files | None = None) -> Measurement | None:
    """Measure a point on this rank; what all ranks noted is given on rank 0, None on the others.

    Scoring is between iterations, outside their time; then all ranks meet before the next begins.

    Parameters
    ----------
    point
        What to measure.
    files
        What its iterates are compared with, and what is written beside the measurement.
    """
    with context(point) as ctx:
        blocks = build(point, ctx)
        task = task_of(point, blocks)
        scorer = Scorer(point, blocks, files or Files())
        scorer.score(task.image)
        gpu = blocks.truth.device.type == "cuda"
        with _tracing(ctx, point) as events:
            # Its own schedule tells what shardinv cuts; of the peer it is counted.
            unknown = ctx is not None and blocks.work is None and point.task == "reconstruct"
            counts = blocks.network if unknown else None
            mine = _run(point, task, scorer, ctx, gpu, events, counts)
        scorer.pictures(blocks.start, task.image)
        told = [mine]
        clocks = [0.0]
        if ctx is not None and ctx.world_size > 1:
            clocks = clock_offsets(ctx)
            told = [mine] * ctx.world_size
            ctx.all_gather_object(told, mine)
            if ctx.rank:
                return None
    stamps = [_on_one_clock(each.stamps, c) for each, c in zip(told, clocks, strict=True)]
    traces = [_events_on_one_clock(each.events, c) for each, c in zip(told, clocks, strict=True)]
    rows = iterations(stamps, traces)
    work, counted = blocks.work, [each.pixels for each in told if each.pixels is not None]
    if counted:
        stride = network_stride(blocks.network)
        work = work_from(point, tuple(blocks.truth.shape[2:]), counted, stride)
    typical = _typical([max(rank.total for rank in row) for row in rows])
    return Measurement(
        point=point,
        psnr_db=scorer.psnr_db,
        ssim=scorer.ssim,
        agreement=scorer.agreement,
        iterations=rows,
        costs=costs(stamps, traces),
        work=work,
        memory=[each.memory for each in told],
        energy=total([each.energy for each in told if each.energy is not None]),
        kernels=[each.kernels for each in told if each.kernels is not None],
        timeline=spans([own[typical] for own in stamps], traces),
    )


def _run(
    point: Point,
    task: Task,
    scorer: Scorer,
    ctx: Any,
    gpu: bool,
    events: Sequence[Event],
    counts: Any,
) -> _Notes:
    counts_energy = gpu or _first_of_host(ctx)
    stamps, energy = [], []
    counter, pixels = None if counts is None else PixelCounter(counts), None
    memory = PeakMemory(gpu)
    for number in range(point.iterations):
        _meet(ctx)
        meter = EnergyMeter(gpu) if counts_energy else None
        memory.look_away()
        stamps.append(_timed(task, number, gpu))
        memory.look()
        if counter is not None and number == 0:
            pixels = counter.stop()
        used = None if meter is None else meter.used()
        energy += [] if used is None else [used]
        scorer.score(task.image)
    kernels = None
    noted = list(events)
    if point.profile:
        _meet(ctx)
        kernels = profile(lambda: task.step(point.iterations, lambda _: None), events, gpu)
    return _Notes(stamps, noted, memory.above, total(energy), kernels, pixels)


def _timed(task: Task, number: int, gpu: bool) -> Stamps:
    def now() -> float:
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    ends: dict[str, float] = {}

    def mark(stage: str) -> None:
        ends[stage] = now()

    start = now()
    task.step(number, mark)
    mark("rest")
    return Stamps(start, ends)


def _meet(ctx: Any) -> None:
    """What a rank did alone before must not be in the others' next iteration."""
    if ctx is not None and ctx.world_size > 1:
        ctx.barrier()


def _first_of_host(ctx: Any) -> bool:
    if ctx is None or ctx.world_size == 1:
        return True
    hosts = [None] * ctx.world_size
    ctx.all_gather_object(hosts, host_identity())
    return hosts.index(hosts[ctx.rank]) == ctx.rank


def _on_one_clock(stamps: Sequence[Stamps], offset: float) -> list[Stamps]:
    return [
        Stamps(s.start + offset, {name: end + offset for name, end in s.ends.items()})
        for s in stamps
    ]


def _events_on_one_clock(events: Sequence[Event], offset: float) -> list[Event]:
    return [
        replace(
            event,
            started=event.started + offset,
            issued=event.issued + offset,
            blocked=event.blocked + offset,
            done=event.done + offset,
        )
        for event in events
    ]


def _typical(seconds: Sequence[float]) -> int:
    """The iteration whose time is nearest to the median one's, without warm-up."""
    first = warm_up(seconds)
    middle = median(seconds[first:])
    return min(range(first, len(seconds)), key=lambda number: abs(seconds[number] - middle))


def _tracing(ctx: Any, point: Point) -> contextlib.AbstractContextManager[Sequence[Event]]:
    if point.system == "shardinv":
        tracing: contextlib.AbstractContextManager[Sequence[Event]] = ctx.ledger.tracing()
        return tracing
    return contextlib.nullcontext([])
