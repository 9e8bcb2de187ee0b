"""Finding out that a trainer works over the ranks.

A script says ``deepinv.Trainer(model=model, ...)``, on one process and on many. On many, each rank
would make the folder for its checkpoints, and the second to come would fail. So that such a script
needs no change, ``Trainer.setup_train`` looks whether the trainer's model or operators have
distributed blocks, and makes this one trainer one over the ranks. Trainers of other models are left
alone. ``distribute(trainer, ctx)`` says so in advance.
"""

from __future__ import annotations

import functools
from typing import Any

from deepinv.training import Trainer
from torch import nn

from shardinv.context import DistributedContext
from shardinv.training.trainer.over_ranks import TrainerOverRanks, set_up


def distribute_trainer(trainer: Trainer, ctx: DistributedContext) -> Trainer:
    """Let a trainer run on every rank, on one sample at a time. In place.

    The trainer becomes an instance of a subclass of its own class. Losses are distributed when it
    is set up; the model and the operators are the user's own distributed objects.

    Raises
    ------
    TypeError
        If it is no ``deepinv.Trainer``.
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(f"a deepinv.Trainer is needed, got a {type(trainer).__name__}")
    if not isinstance(trainer, TrainerOverRanks):
        kind = type(trainer)
        described = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        trainer.__class__ = type(kind.__name__, (TrainerOverRanks, kind), described)
        trainer.plots_images = trainer.plot_images
    trainer.ctx = ctx
    return trainer


def context_of(trainer: Trainer) -> DistributedContext | None:
    """The ranks of a trainer's distributed blocks; None where it has none, or they are alone."""
    physics = trainer.physics if isinstance(trainer.physics, (list, tuple)) else [trainer.physics]
    for source in (trainer.model, *physics):
        parts = source.modules() if isinstance(source, nn.Module) else [source]
        for part in parts:
            ctx = getattr(part, "__dict__", {}).get("ctx")
            if isinstance(ctx, DistributedContext) and ctx.world_size > 1:
                return ctx
    return None


def _noticing(plain: Any) -> Any:
    @functools.wraps(plain)
    def setup_train(self: Trainer, *args: Any, **kwargs: Any) -> None:
        ctx = None if isinstance(self, TrainerOverRanks) else context_of(self)
        if ctx is None:
            plain(self, *args, **kwargs)
            return
        # A subclass's own set-up may be under way: it goes on where it called this one.
        set_up(distribute_trainer(self, ctx), lambda: plain(self, *args, **kwargs))

    setup_train.notices_ranks = True  # type: ignore[attr-defined]
    return setup_train


if not hasattr(Trainer.setup_train, "notices_ranks"):
    Trainer.setup_train = _noticing(Trainer.setup_train)
