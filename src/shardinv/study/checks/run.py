"""All checks of a point, on its ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardinv import DistributedContext
from shardinv.exchange import host_of_ranks
from shardinv.study.checks import balance, communication, matching
from shardinv.study.checks.finding import Finding
from shardinv.study.checks.gpus import Gpu, gpus
from shardinv.study.checks.iterating import Timed, in_precision, run_timed
from shardinv.study.checks.links import Links, measure_links
from shardinv.study.checks.load import Load, load
from shardinv.study.checks.memory import Memory, memory
from shardinv.study.checks.patience import patience
from shardinv.study.checks.references import Choice, choose, compare
from shardinv.study.checks.telling import tell
from shardinv.study.checks.threads import Threads, threads
from shardinv.study.checks.weights import seen_here, wanted_files, weights
from shardinv.study.checks.writing import shared_folder, writers
from shardinv.study.measuring.build import Blocks, build, context
from shardinv.study.plan.point import Point
from shardinv.tensor import ShardedTensor


def checks(
    point: Point,
    folder: Path,
    iterations: int = 3,
    seconds: float = 60.0,
    load_before: float | None = None,
) -> Iterator[Finding]:
    """Check a point, on each of its ranks; every rank must take all findings.

    Parameters
    ----------
    point
        Of the system ``shardinv``. Of training, the reconstruction is run.
    folder
        Where its results are to be.
    iterations
        To run; three tell most.
    seconds
        That the undistributed runs may take together, or a part of the problem is compared.
    load_before
        Of the machine, before the check began.

    Yields
    ------
    Finding
        The same on every rank, as soon as it is known.
    """
    point = point.model_copy(update={"quality": False})
    with context(point) as ctx:
        torch.set_num_threads(point.threads)
        found = _machine(ctx, point, load_before)
        yield from found
        if any(each.status == "failed" and each.name == "machine: files" for each in found):
            return
        folders = shared_folder(ctx, folder)
        yield folders
        if folders.status != "failed":
            yield writers(ctx, folder)[0]
        links = measure_links(ctx)
        if links is None:
            yield Finding("links", "ok", {}, "one rank, which sends nothing")
        else:
            yield communication.latency(links)
            yield communication.bandwidth(links)
        with torch.no_grad():
            blocks = build(point, ctx)
            yield from _work(blocks)
            denoise = in_precision(blocks.denoiser, point.precision)
            last, timed = run_timed(blocks, denoise, iterations)
        yield from _times(blocks, point, links, timed)
        with torch.no_grad():
            yield from _results(blocks, point, last, min(iterations, point.iterations), seconds)


def _machine(ctx: DistributedContext, point: Point, before: float | None) -> list[Finding]:
    host = host_of_ranks(ctx.comm)[ctx.rank]
    files = wanted_files(point)
    return [
        threads(tell(ctx, Threads.here(host))),
        load(tell(ctx, Load.here(host, before))),
        gpus(tell(ctx, Gpu.here(host, ctx.device)), ctx.backend),
        weights(files, tell(ctx, seen_here(files))),
    ]


def _work(blocks: Blocks) -> Iterator[Finding]:
    schedule, truth = _schedule(blocks), blocks.truth
    yield balance.tiles(
        schedule.grid.costs,
        schedule.hands,
        blocks.denoiser.options,
        schedule.grid.shape,
        schedule.stride,
    )
    if isinstance(truth, ShardedTensor):
        sizes = [box.size for box in truth.sharding.partition.boxes]
        yield balance.boxes(sizes, truth.sharding.mesh)
    else:
        yield balance.operators(blocks.physics.costs, blocks.physics.ownership.hands)


def _times(blocks: Blocks, point: Point, links: Links | None, mine: Timed) -> Iterator[Finding]:
    ctx: DistributedContext = blocks.ctx
    told = tell(ctx, mine)
    costs, hands = _schedule(blocks).grid.costs, _schedule(blocks).hands
    work = {"denoiser": [sum(costs[index] for index in hand) for hand in hands]}
    if isinstance(blocks.truth, ShardedTensor):
        work["physics"] = [box.size for box in blocks.truth.sharding.partition.boxes]
    else:
        own = blocks.physics.ownership.hands
        work["physics"] = [sum(blocks.physics.costs[index] for index in hand) for hand in own]
    stages = {name: [getattr(each, name) for each in told] for name in ("physics", "denoiser")}
    yield balance.seconds(stages, work)
    if links is not None:
        yield communication.share(
            links,
            [each.bytes_sent for each in told],
            max(each.calls for each in told),
            sum(max(times) for times in stages.values()),
        )
    variable = os.environ.get("SHARDINV_TIMEOUT")
    yield patience(
        tell(ctx, ctx.timeout.total_seconds()),
        tell(ctx, variable),
        max(each.total for each in told),
    )
    host = host_of_ranks(ctx.comm)[ctx.rank]
    yield memory(tell(ctx, Memory.here(host, ctx.device)), point.task)


def _results(
    blocks: Blocks, point: Point, last: Tensor, count: int, seconds: float
) -> Iterator[Finding]:
    ctx: DistributedContext = blocks.ctx
    # The other ranks wait meanwhile.
    seconds = min(seconds, ctx.timeout.total_seconds() / 4)
    mine = choose(point, count, seconds, ctx.device) if ctx.is_main else Choice(None)
    choice = tell(ctx, mine)[0]
    chosen = choice.point
    if chosen is None:
        message = f"not compared: {choice.reason}, and two tiles across are too much as well"
        yield Finding("results", "warning", {}, message, "a smaller tile, or fewer --iterations")
        return
    if chosen.size != point.size:
        blocks = build(chosen, ctx)
        last, _ = run_timed(blocks, in_precision(blocks.denoiser, point.precision), count)
    start, last = ctx.gather(blocks.start), ctx.gather(last)
    found = compare(chosen, blocks.denoiser, start, last, count) if ctx.is_main else None
    outcome: Any = tell(ctx, found)[0]
    where = f"after {count} iteration{'s' * (count > 1)}"
    if choice.reason:
        side = " × ".join(map(str, start.shape[2:]))
        where += f" on the middle {side} px ({choice.reason})"
    yield matching.distribution(outcome.distribution, outcome.start, where, point.precision)
    if outcome.halo is None:
        yield Finding("results: halo", "ok", {}, "one tile, which is the whole image")
        return
    yield matching.halo(
        outcome.halo,
        where,
        point.precision,
        max(_schedule(blocks).grid.halo),
        outcome.reach,
        outcome.whole,
        outcome.mended,
    )


def _schedule(blocks: Blocks) -> Any:
    truth = blocks.truth
    sharding = truth.sharding if isinstance(truth, ShardedTensor) else None
    return blocks.denoiser.schedule(tuple(truth.shape[2:]), sharding)
