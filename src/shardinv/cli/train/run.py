"""What every rank of a training run does: all work on each batch together."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor

from shardinv import DistributedContext
from shardinv.cli.errors import UsageError
from shardinv.cli.ranks import Layout, open_context
from shardinv.cli.train.history import History
from shardinv.cli.train.model import make_model, make_optimizer, make_physics
from shardinv.cli.train.report import Pictures, write_outputs
from shardinv.cli.train.samples import batches, cut_squares
from shardinv.cli.train.settings import TrainSettings
from shardinv.problems import normalised_adjoint, psnr

# What a run may change when it goes on.
_FREE = {"output", "resume", "checkpoint_every"}


def run_train(settings: TrainSettings) -> None:
    """Carry out a training run on this rank; rank 0 shows, draws and writes.

    Parameters
    ----------
    settings
        The same on every rank.
    """
    with open_context(settings.data.seed, settings.device) as ctx:
        training = _Training(settings, ctx)
        pictures = training.run()
        if ctx.is_main:
            files = write_outputs(settings, training.history, pictures, training.model, ctx)
            shutil.rmtree(settings.checkpoints, ignore_errors=True)
            history = training.history
            print(
                f"validation PSNR {history.start_db:.2f} dB before training, "
                f"{history.psnr_db[-1]:.2f} dB after {history.epochs} epochs\n"
                f"written: {', '.join(map(str, files))}",
                flush=True,
            )


class _Training:
    def __init__(self, settings: TrainSettings, ctx: DistributedContext) -> None:
        self.settings, self.ctx = settings, ctx
        data = settings.data
        self.samples = cut_squares(data.training, data.side, data.samples, data.seed)
        self.judged_by = cut_squares(
            data.validation, data.side, data.validation_samples, data.seed + 1
        )
        self.physics = make_physics(settings, ctx)
        self.model = make_model(settings, ctx)
        self.optimizer, self.schedule = make_optimizer(settings, self.model)
        self.history = History()

    # -- images and their measurements -----------------------------------------------------------

    def _laid_out(self, images: Tensor) -> Tensor:
        images = images.to(self.ctx.device)
        return self.ctx.shard(images) if self.settings.layout.kind is Layout.sharded else images

    def _measured(self, truth: Tensor, seed: int) -> Any:
        """Measurements with noise that follows from the seed, whatever was drawn before."""
        torch.manual_seed(seed)
        with torch.no_grad():
            return self.physics(truth)

    def _judge(self) -> tuple[float, Tensor, Any, Tensor]:
        truth = self._laid_out(self.judged_by)
        y = self._measured(truth, 0)
        self.model.eval()
        with torch.no_grad():
            estimate = self.model(y, self.physics)
        return _psnr(self.ctx, estimate, truth), truth, y, estimate

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> Pictures:
        """All epochs, or those that are left; gives what is drawn."""
        settings, ctx = self.settings, self.ctx
        self._take_up()
        if not self.history.epochs:
            self._begin()
        for epoch in range(self.history.epochs, settings.optimizer.epochs):
            started = time.perf_counter()
            loss = self._epoch(epoch)
            quality = self._judge()[0]
            self.schedule.step()
            seconds = time.perf_counter() - started
            self.history.add(loss, quality, seconds)
            self._say(
                f"epoch {epoch + 1}/{settings.optimizer.epochs}  loss {loss:.3e}  PSNR "
                f"{quality:.2f} dB  {seconds:.1f} s"
            )
            if (epoch + 1) % settings.checkpoint_every == 0:
                self._save()
        _, truth, y, estimate = self._judge()
        shown = (truth, self._adjoint(y, truth), estimate)
        return Pictures(*(ctx.gather(image)[0].cpu() for image in shown))

    def _begin(self) -> None:
        """Quality before training, and of the adjoint, to compare with."""
        history = self.history
        history.start_db, truth, y, _ = self._judge()
        history.baseline_db = _psnr(self.ctx, self._adjoint(y, truth), truth)
        parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self._say(
            f"{parameters} trained parameters, {len(self.samples)} squares of "
            f"{self.settings.data.side} px, {self.ctx.world_size} processes; validation PSNR "
            f"{history.start_db:.2f} dB before training"
        )

    def _adjoint(self, y: Any, truth: Tensor) -> Tensor:
        with torch.no_grad():
            return normalised_adjoint(self.physics, y, truth)

    def _say(self, line: str) -> None:
        if self.ctx.is_main:
            print(line, flush=True)

    def _epoch(self, epoch: int) -> float:
        settings = self.settings
        data, chosen = settings.data, settings.optimizer
        count = -(-data.samples // chosen.batch)
        cast = torch.autocast(
            self.ctx.device.type, torch.bfloat16, enabled=chosen.precision == "bfloat16"
        )
        self.model.train()
        total = 0.0
        with _bar(f"epoch {epoch + 1}", count, self.ctx.is_main) as advance:
            order = batches(self.samples, chosen.batch, data.seed + epoch)
            for number, images in enumerate(order):
                truth = self._laid_out(images)
                y = self._measured(truth, 1 + epoch * count + number)
                self.optimizer.zero_grad()
                with cast:
                    loss = (self.model(y, self.physics) - truth).square().mean()
                loss.backward()
                if chosen.clip is not None:
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), chosen.clip)
                self.optimizer.step()
                value = float(loss.detach())
                total += value * len(images)
                advance(value)
        return total / data.samples

    # -- the state of a run that has not ended -----------------------------------------------------

    def _save(self) -> None:
        # Rank 0's clock is the one that is shown.
        history = self.ctx.broadcast_object(self.history.state())
        self.history = History(**history)
        self.ctx.save(
            self.settings.checkpoints,
            state={
                "settings": self._identity(),
                "history": history,
                "model": self.model,
                "optimizer": self.optimizer,
                "schedule": self.schedule,
            },
        )

    def _take_up(self) -> None:
        settings, ctx = self.settings, self.ctx
        if not settings.resume:
            if ctx.is_main:
                shutil.rmtree(settings.checkpoints, ignore_errors=True)
            return
        if ctx.latest(settings.checkpoints) is None:
            return
        state = ctx.load(settings.checkpoints).state
        mine = self._identity()
        for name, value in state["settings"].items():
            if mine.get(name) != value:
                raise UsageError(
                    f"--resume: {settings.checkpoints} is of a run with another {name}: {value}, "
                    f"not {mine.get(name)}; give the same, or leave --resume away to start anew",
                    told=ctx.is_main,
                )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.history = History(**state["history"])
        self._say(f"resumed after epoch {self.history.epochs}")

    def _identity(self) -> dict[str, str]:
        """What the result follows from, section by section; not how the work is shared out."""
        sections = self.settings.model_dump(mode="json", exclude=_FREE | {"layout", "memory"})
        tiles = {"tile": self.settings.layout.tile, "overlap": self.settings.layout.overlap}
        return {name: str(value) for name, value in {**sections, "layout": tiles}.items()}


def _psnr(ctx: DistributedContext, estimate: Tensor, truth: Tensor) -> float:
    """Of the mean squared error of all squares: flat ones would rule a mean of their PSNRs."""
    return psnr(ctx.gather(estimate), ctx.gather(truth))


@contextlib.contextmanager
def _bar(title: str, count: int, shown: bool) -> Any:
    """A bar on a terminal, which goes when the epoch has ended; elsewhere nothing."""
    console = Console()
    if not shown or not console.is_terminal:
        yield lambda loss: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=count, loss="")
        yield lambda loss: progress.update(task, advance=1, loss=f"loss {loss:.3e}")
