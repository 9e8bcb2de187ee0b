"""What a training run leaves: weights, two figures, a record. Each file is whole or not there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from shardinv import DistributedContext
from shardinv.cli.train.history import History
from shardinv.cli.train.settings import TrainSettings
from shardinv.cli.versions import versions
from shardinv.io import atomic_file, write_json
from shardinv.io.figures import STYLE, new_figure, save_figure
from shardinv.problems import psnr

_LOSS, _PSNR, _REFERENCE = "#d55e00", "#0072b2", "#555555"


@dataclass(frozen=True)
class Pictures:
    """A validation square ``(3, side, side)``: the truth, the adjoint, the reconstruction."""

    truth: Tensor
    adjoint: Tensor
    estimate: Tensor


def write_outputs(
    settings: TrainSettings,
    history: History,
    pictures: Pictures,
    model: torch.nn.Module,
    ctx: DistributedContext,
) -> list[Path]:
    """Write everything into the folder; on one rank."""
    folder = settings.output
    folder.mkdir(parents=True, exist_ok=True)
    names = ("weights.pt", "learning_curve.png", "validation.png", "result.json")
    files = [folder / name for name in names]
    with atomic_file(files[0]) as partial:
        torch.save({name: t.cpu() for name, t in model.state_dict().items()}, partial)
    with mpl.rc_context(STYLE):
        save_figure(draw_learning(history), files[1])
        save_figure(draw_pictures(pictures), files[2])
    write_json(files[3], _record(settings, history, ctx))
    return files


def draw_learning(history: History) -> Figure:
    """Loss and PSNR against epochs, with the PSNR before training and of the adjoint."""
    figure = new_figure(9, 3.6, layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = range(1, history.epochs + 1)
    left.plot(epochs, history.loss, color=_LOSS, marker="o", markersize=3)
    left.set(title="Training", xlabel="epoch", ylabel="mean squared error", yscale="log")
    right.plot([0, *epochs], [history.start_db, *history.psnr_db], color=_PSNR, marker="o", ms=3)
    right.axhline(history.baseline_db, color=_REFERENCE, linestyle="--", linewidth=1)
    right.annotate(
        f"adjoint {history.baseline_db:.2f} dB",
        (1, history.baseline_db),
        xycoords=("axes fraction", "data"),
        xytext=(-2, -13),
        textcoords="offset points",
        ha="right",
        color=_REFERENCE,
    )
    right.annotate(
        f"{history.psnr_db[-1]:.2f} dB",
        (history.epochs, history.psnr_db[-1]),
        xytext=(0, -14),
        textcoords="offset points",
        ha="right",
        color=_PSNR,
    )
    right.set(title="Validation", xlabel="epoch (0: before training)", ylabel="PSNR in dB")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    return figure


def draw_pictures(pictures: Pictures) -> Figure:
    """A validation square: what goes in, what comes out, the truth."""
    figure = new_figure(9, 3.4, layout="constrained")
    truth = pictures.truth
    panels = (
        (f"Adjoint, {psnr(pictures.adjoint, truth):.2f} dB", pictures.adjoint),
        (f"Reconstruction, {psnr(pictures.estimate, truth):.2f} dB", pictures.estimate),
        ("Truth", truth),
    )
    for axes, (title, image) in zip(figure.subplots(1, 3), panels, strict=True):
        axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
        axes.set_title(title)
        axes.set_axis_off()
    return figure


def _record(settings: TrainSettings, history: History, ctx: DistributedContext) -> dict[str, Any]:
    return {
        "settings": settings.model_dump(mode="json"),
        "history": history.state(),
        "ranks": ctx.world_size,
        "backend": ctx.backend,
        "hardware": str(ctx.device),
        "ledger": ctx.ledger.table(),
        "versions": versions(),
    }
