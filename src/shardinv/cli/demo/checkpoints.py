"""The state of a demo that has not ended: saved now and then, and taken up by ``--resume``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from torch import Tensor

from shardinv import DistributedContext
from shardinv.cli.demo.settings import DemoSettings
from shardinv.cli.demo.track import Track
from shardinv.cli.errors import UsageError

# What may differ between the run that saved and the one that goes on: it changes at most rounding.
_FREE = {
    "size",  # compared as it was chosen
    "processes",
    "device",
    "layout",
    "batch",
    "check",
    "checkpoint_every",
    "resume",
    "output",
}


def saver(
    settings: DemoSettings, side: int, ctx: DistributedContext
) -> Callable[[Tensor, Track], None] | None:
    """What saves the state after an iteration, where that was asked for.

    Parameters
    ----------
    settings
        Of the demo.
    side
        Side of the image.
    ctx
        The ranks.
    """
    every = settings.saves_every
    if every is None:
        return None

    def save(image: Tensor, track: Track) -> None:
        done = len(track.seconds)
        if done % every and done < settings.iterations:
            return
        # Rank 0 alone has the scores, and its clock is the one that is shown.
        facts = ctx.broadcast_object((track.seconds, track.psnr_db, track.residuals))
        state = {"settings": _identity(settings, side), "track": facts}
        ctx.save(settings.checkpoints, x=image, state=state)

    return save


def load_checkpoint(
    settings: DemoSettings, side: int, ctx: DistributedContext, start: Tensor
) -> tuple[Tensor, Track]:
    """The iterate to go on with, and what happened before; the first iterate if nothing did.

    A run that does not resume removes what an earlier one left.

    Parameters
    ----------
    settings, side, ctx
        As for :func:`saver`.
    start
        The first iterate, ``(1, C, H, W)``, in the layout wanted.

    Raises
    ------
    UsageError
        On every rank, if what was saved is of a run with other settings.
    """
    if not settings.resume:
        if ctx.is_main and settings.saves_every is not None:
            shutil.rmtree(settings.checkpoints, ignore_errors=True)
        return start, Track()
    if ctx.latest(settings.checkpoints) is None:
        return start, Track()
    image, state = ctx.load(settings.checkpoints, layout=settings.layout.value)
    mine = _identity(settings, side)
    for name, value in state["settings"].items():
        if mine.get(name) != value:
            raise UsageError(
                f"--resume: {settings.checkpoints} is of a run with --{name.replace('_', '-')} "
                f"{value}, not {mine.get(name)}; give the same, or leave --resume away to start "
                "anew",
                told=ctx.is_main,
            )
    seconds, psnr_db, residuals = state["track"]
    scores = (psnr_db, residuals) if ctx.is_main or settings.layout == "sharded" else ([], [])
    return image, Track(seconds, *scores)


def _identity(settings: DemoSettings, side: int) -> dict[str, Any]:
    """The settings that the result follows from."""
    chosen = settings.model_dump(mode="json", exclude=_FREE)
    return chosen | {"size": side, "sigma": settings.sigmas[0], "sigma_end": settings.sigmas[1]}
