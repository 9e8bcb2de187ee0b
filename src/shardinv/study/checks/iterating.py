"""A few iterations of a point's loop, timed on this rank without what it waits and sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from shardinv.ledger import Event
from shardinv.study.measuring.build import Blocks

Denoise = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Timed:
    """Of this rank, medians over iterations.

    Parameters
    ----------
    physics, denoiser
        Seconds of computing.
    total
        Seconds of an iteration, with all that it waits and sends.
    bytes_sent, calls
        Of all operations.
    """

    physics: float
    denoiser: float
    total: float
    bytes_sent: float
    calls: float


def in_precision(denoise: Callable[..., Tensor], precision: str) -> Denoise:
    """A denoiser in a precision of its own, which returns what it was given."""
    if precision == "float32":
        return denoise
    dtype = getattr(torch, precision)

    def cast(x: Tensor, sigma: float) -> Tensor:
        with torch.autocast(x.device.type, dtype):
            return denoise(x, sigma).to(x.dtype)

    return cast


def step(blocks: Blocks, denoise: Denoise | None, x: Tensor, sigma: float) -> Tensor:
    """One iteration, of plug-and-play: towards the measurements, then the denoiser."""
    x = x - blocks.step * blocks.fidelity.grad(x, blocks.y, blocks.physics)
    return x if denoise is None else denoise(x, sigma)


def run(blocks: Blocks, denoise: Denoise | None, count: int) -> Tensor:
    """The iterate after some iterations."""
    x = blocks.start
    for sigma in blocks.sigmas[:count]:
        x = step(blocks, denoise, x, sigma)
    return x


def run_timed(blocks: Blocks, denoise: Denoise, count: int) -> tuple[Tensor, Timed]:
    """The same on the ranks of the blocks' context, with what it takes this rank."""
    ctx: Any = blocks.ctx

    def now() -> float:
        if ctx.device.type == "cuda":
            torch.cuda.synchronize(ctx.device)
        return time.perf_counter()

    x, rows = blocks.start, []
    with ctx.ledger.tracing() as events:
        for sigma in blocks.sigmas[:count]:
            ctx.barrier()
            start = now()
            x = step(blocks, None, x, sigma)
            middle = now()
            x = denoise(x, sigma)
            rows.append((start, middle, now(), list(events)))
            events.clear()
    # The first one also makes plans, connections and buffers.
    return x, _timed(rows[1:] or rows)


def _timed(rows: Sequence[tuple[float, float, float, list[Event]]]) -> Timed:
    physics, denoiser, total, sent, calls = [], [], [], [], []
    for start, middle, end, events in rows:
        inside = [event for event in events if event.started >= start]
        early = sum(event.exposed for event in inside if event.started < middle)
        late = sum(event.exposed for event in inside if event.started >= middle)
        physics.append(middle - start - early)
        denoiser.append(end - middle - late)
        total.append(end - start)
        sent.append(sum(event.bytes_sent for event in inside))
        calls.append(len(inside))
    return Timed(median(physics), median(denoiser), median(total), median(sent), median(calls))
