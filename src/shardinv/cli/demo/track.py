"""Follows a loop on all ranks: what each iteration took, sent and gained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shardinv import DistributedContext
from shardinv.cli.demo.progress import progress
from shardinv.problems import psnr, relative_error
from shardinv.tensor import ShardedTensor

_SCORES = "scores"


@dataclass
class Track:
    """One entry for each iteration, and this rank's account of messages.

    Attributes
    ----------
    seconds
        Time between two barriers, scoring excluded.
    psnr_db
        PSNR after the iteration; on rank 0.
    residuals
        Relative change of the iterate; on rank 0.
    bytes_sent, calls
        What this rank sent in the iteration, and in how many operations; of a run that was resumed,
        since then.
    table
        The ledger over these iterations, scoring excluded.
    """

    seconds: list[float] = field(default_factory=list)
    psnr_db: list[float] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last_bytes(self) -> int:
        """Bytes sent in the last iteration; 0 where a resumed run had none left to do."""
        return self.bytes_sent[-1] if self.bytes_sent else 0


def follow(
    title: str,
    loop: Iterator[Tensor],
    start: Tensor,
    truth: Tensor,
    iterations: int,
    ctx: DistributedContext,
    then: Callable[[Tensor, float], None] | None = None,
    whole: bool = False,
    track: Track | None = None,
    save: Callable[[Tensor, Track], None] | None = None,
) -> tuple[Track, Tensor]:
    """Drive a loop to its end.

    Parameters
    ----------
    title
        What is being done, for the progress bar.
    loop
        Yields the iterate after each iteration, the same on every rank, or sharded.
    start
        The iterate before the first of them, ``(1, C, H, W)``.
    truth
        What it should become, in the same layout.
    iterations
        How many there are, those that are behind included.
    ctx
        The ranks.
    then
        Called on rank 0 after each iteration, outside the timed part, with iterate and PSNR.
    whole
        Whether a sharded iterate is gathered for it; the same on every rank.
    track
        What happened in the iterations that are behind.
    save
        Called on every rank at the end of each iteration.

    Returns
    -------
    track
        What happened.
    image
        The last iterate.
    """
    track = track if track is not None else Track()
    image = start
    done = len(track.seconds)
    ctx.ledger.reset()
    with progress(title, iterations, shown=ctx.is_main, done=done) as report:
        for _ in range(done, iterations):
            # All ranks start the clock together, after rank 0 has scored the last iterate. The
            # barrier itself is not part of the algorithm, so the account is read after it.
            ctx.barrier()
            sent, calls = ctx.ledger.bytes_sent, ctx.ledger.calls
            began = _now(ctx)
            previous, image = image, next(loop)
            track.seconds.append(_now(ctx) - began)
            track.bytes_sent.append(ctx.ledger.bytes_sent - sent)
            track.calls.append(ctx.ledger.calls - calls)
            with ctx.ledger.block(_SCORES):
                scored = ctx.gather(image) if whole else image
                # A sharded image is scored by all ranks together, a whole one by the first alone.
                if ctx.is_main or isinstance(image, ShardedTensor):
                    track.psnr_db.append(psnr(image, truth))
                    track.residuals.append(relative_error(previous, image))
            if ctx.is_main:
                if then is not None:
                    then(scored, track.psnr_db[-1])
                report(
                    residual=track.residuals[-1],
                    psnr_db=track.psnr_db[-1],
                    seconds=track.seconds[-1],
                )
            if save is not None:
                save(image, track)
    track.table = [
        row
        for row in ctx.ledger.table()
        if row["operation"] != "barrier" and row["block"] != _SCORES
    ]
    return track, image


def _now(ctx: DistributedContext) -> float:
    if ctx.device.type == "cuda":
        torch.cuda.synchronize(ctx.device)
    return time.perf_counter()
