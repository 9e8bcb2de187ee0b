"""What ``deepinv.Trainer`` does otherwise where several ranks work on each sample together.

Every rank runs the same loop. Rank 0 alone shows, draws and writes; all wait until a file is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepinv.loss import Loss
from deepinv.training import Trainer
from deepinv.utils import get_timestamp

from shardinv.checkpoint import on_main
from shardinv.context import DistributedContext
from shardinv.physics.measurements import OwnedMeasurements
from shardinv.tensor import ShardedTensor
from shardinv.training.losses import distribute_loss
from shardinv.training.trainer.loaders import SameSamples, check_samples
from shardinv.training.trainer.randomness import as_rank_zero

_SHOWN = ("verbose", "show_progress_bar", "plot_images", "wandb_vis", "mlflow_vis")
"""What rank 0 alone does."""


class TrainerOverRanks(Trainer):
    """A trainer that runs on every rank, on one sample at a time.

    Made by :func:`shardinv.distribute`, or by itself: see
    :mod:`shardinv.training.trainer.noticing`.
    """

    ctx: DistributedContext

    # -- setting up ------------------------------------------------------------------------------

    def setup_train(self, train: bool = True, **kwargs: Any) -> None:
        """As DeepInverse's; the folder is made by rank 0, named by its clock."""
        set_up(self, lambda: super(TrainerOverRanks, self).setup_train(train, **kwargs))

    def test(self, test_dataloader: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As DeepInverse's; the same on every rank, files by rank 0."""
        several = isinstance(test_dataloader, (list, tuple))
        loaders = [
            same_samples(d, self.ctx) for d in (test_dataloader if several else [test_dataloader])
        ]
        return super().test(loaders, *args, **kwargs)

    # -- a step ----------------------------------------------------------------------------------

    def step(self, *args: Any, **kwargs: Any) -> None:
        """As DeepInverse's; whatever is drawn at random is drawn as on rank 0."""
        with as_rank_zero(self.ctx):
            super().step(*args, **kwargs)

    def get_samples(self, iterators: Any, g: int) -> Any:
        """As DeepInverse's; raises unless every rank has the same sample."""
        x, y, physics = super().get_samples(iterators, g)
        check_samples(self.ctx, x, y)
        return x, y, physics

    # -- what is shown and written -----------------------------------------------------------------

    def plot(
        self, epoch: int, physics: Any, x: Any, y: Any, x_net: Any, train: bool = True
    ) -> None:
        """As DeepInverse's, on rank 0; the others take part in what it needs."""
        due = self.plots_images and (epoch + 1) % self.plot_interval == 0
        if not due and self.save_folder_im is None and self.conv_metrics is None:  # type: ignore[has-type]
            return
        baseline = None
        if self.compare_no_learning and (due or self.save_folder_im is not None):
            baseline = self._whole(self.no_learning_inference(y, physics))  # type: ignore[has-type]
        x, y, x_net = self._whole(x), self._whole(y), self._whole(x_net)
        if self.ctx.is_main:
            self.no_learning_inference = lambda *_: baseline
            try:
                super().plot(epoch, physics, x, y, x_net, train)
            finally:
                del self.no_learning_inference
        self.conv_metrics = None

    def _whole(self, value: Any) -> Any:
        if isinstance(value, ShardedTensor):
            return self.ctx.gather(value)
        return value.gather() if isinstance(value, OwnedMeasurements) else value

    def save_model(self, filename: str, epoch: int, state: dict[str, Any] | None = None) -> None:
        """As DeepInverse's, by rank 0, and whole or not at all. All ranks may read it then."""
        if not self.save_path:
            return
        partial = f".{filename}.part"

        def write() -> None:
            super(TrainerOverRanks, self).save_model(partial, epoch, state)
            os.replace(Path(self.save_path) / partial, Path(self.save_path) / filename)

        on_main(self.ctx.comm, f"saving {filename}", write)

    # -- decisions -------------------------------------------------------------------------------

    def save_best_model(self, epoch: int, train_ite: int, **kwargs: Any) -> None:
        """As DeepInverse's; whether a model is the best is decided by rank 0's numbers."""
        for name in ("eval_metrics_history", "eval_loss_history"):
            setattr(self, name, self.ctx.broadcast_object(getattr(self, name)))
        super().save_best_model(epoch, train_ite, **kwargs)

    def stop_criterion(self, *args: Any, **kwargs: Any) -> bool:
        """As DeepInverse's, decided by rank 0."""
        return bool(self.ctx.broadcast_object(super().stop_criterion(*args, **kwargs)))


def same_samples(loader: Any, ctx: DistributedContext) -> Any:
    """A loader that gives every rank the same samples; one that does already, as it is."""
    return loader if loader is None or isinstance(loader, SameSamples) else SameSamples(loader, ctx)


def set_up(trainer: Any, plain: Callable[[], None]) -> None:
    """Set a trainer up for the ranks, around DeepInverse's own set-up."""
    ctx: DistributedContext = trainer.ctx
    folder, trainer.save_path = trainer.save_path, None
    if not ctx.is_main:
        for name in _SHOWN:
            setattr(trainer, name, False)
    losses = trainer.losses if isinstance(trainer.losses, (list, tuple)) else [trainer.losses]
    trainer.losses = [
        distribute_loss(loss, ctx) if isinstance(loss, Loss) else loss for loss in losses
    ]
    plain()
    ctx.check_same(
        "the epoch to begin with",
        int(trainer.epoch_start),
        "They read different checkpoints: ckpt_pretrained must be a file that every rank sees",
    )
    for name in ("train_dataloader", "eval_dataloader"):
        loaders = getattr(trainer, name)
        if loaders is not None:
            setattr(trainer, name, [same_samples(loader, ctx) for loader in loaders])
    if folder:
        trainer.save_path = on_main(
            ctx.comm, "making the trainer's folder", lambda: _made(Path(folder))
        )


def _made(folder: Path) -> str:
    path = folder / get_timestamp()
    number = 1
    while path.exists():
        path, number = folder / f"{path.name.partition('.')[0]}.{number}", number + 1
    path.mkdir(parents=True)
    return str(path)
