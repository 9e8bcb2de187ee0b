"""The two figures of the demo: what it looks like, and how it got there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from shardinv.cli.demo.outcome import Outcome
from shardinv.cli.demo.scene import Scene
from shardinv.cli.demo.settings import DemoSettings
from shardinv.io.figures import STYLE, new_figure, save_figure
from shardinv.problems import ssim

_BOXES = ("#e69f00", "#56b4e9")
_RECONSTRUCTION, _PLAIN, _BICUBIC = "#0072b2", "#d55e00", "#555555"


@dataclass(frozen=True)
class _Panel:
    """An image, shown at the size of the fine one whatever its own, and what stands above it."""

    title: str
    facts: str
    image: Tensor


def draw_comparison(path: Path, settings: DemoSettings, scene: Scene, outcome: Outcome) -> None:
    """Truth, one frame, bicubic interpolation and reconstruction, each whole and in two zooms."""
    assert outcome.reconstruction is not None
    side = scene.side
    coarse = side // settings.factor
    panels = (
        _Panel("Truth", f"{side} × {side} pixels", scene.truth),
        _Panel(
            f"One frame of {settings.frames}",
            f"{coarse} × {coarse} pixels, noise σ = {settings.noise:g}",
            outcome.frame,
        ),
        _Panel(
            "Bicubic, from one frame",
            _score(outcome.bicubic_db, outcome.bicubic, scene.truth),
            outcome.bicubic,
        ),
        _Panel(
            f"Plug-and-play, from {settings.frames}",
            _score(outcome.reconstruction_db, outcome.reconstruction, scene.truth),
            outcome.reconstruction,
        ),
    )
    zooms = detailed_windows(scene.truth)
    with mpl.rc_context(STYLE):
        # Square panels on a grid given in inches: nothing is left to be laid out.
        size, gap, top, bottom = 2.9, 0.08, 0.62, 0.3
        width = len(panels) * size + (len(panels) + 1) * gap
        height = top + 3 * size + 2 * gap + bottom
        figure = new_figure(width, height)
        for column, panel in enumerate(panels):
            pixels = _pixels(panel.image)
            for row in range(3):
                left = gap + column * (size + gap)
                low = bottom + (2 - row) * (size + gap)
                axes = figure.add_axes((left / width, low / height, size / width, size / height))
                axes.set_xticks([])
                axes.set_yticks([])
                # Whole images are scaled down, zooms show their pixels.
                axes.imshow(
                    pixels,
                    extent=(0, side, side, 0),
                    cmap="gray",
                    vmin=0,
                    vmax=1,
                    interpolation="antialiased" if row == 0 else "nearest",
                )
                if row == 0:
                    axes.axis("off")
                    for (y, x, length), colour in zip(zooms, _BOXES, strict=True):
                        # A dark line around the coloured one keeps it visible on any ground.
                        for line, ink in ((3.2, "black"), (1.6, colour)):
                            axes.add_patch(
                                Rectangle((x, y), length, length, fill=False, lw=line, ec=ink)
                            )
                    axes.text(
                        0.5,
                        1.085,
                        panel.title,
                        transform=axes.transAxes,
                        ha="center",
                        va="bottom",
                        fontsize=12,
                        fontweight="bold",
                    )
                    axes.text(
                        0.5,
                        1.02,
                        panel.facts,
                        transform=axes.transAxes,
                        ha="center",
                        va="bottom",
                        fontsize=10.5,
                    )
                else:
                    y, x, length = zooms[row - 1]
                    axes.set_xlim(x, x + length)
                    axes.set_ylim(y + length, y)
                    for spine in axes.spines.values():
                        spine.set_visible(True)
                        spine.set_color(_BOXES[row - 1])
                        spine.set_linewidth(2.4)
        notes = [f"zooms of {length} × {length} pixels" for *_, length in zooms[:1]]
        if scene.credit:
            cut = "mirrored" if scene.mirrored else "cropped"
            notes.append(f"photograph: {scene.credit}, {cut}")
        elif scene.mirrored:
            notes.append("photograph continued by mirror images")
        figure.text(
            gap / width,
            0.09 / height,
            ";  ".join(notes),
            fontsize=8.5,
            color="#444444",
            ha="left",
            va="bottom",
        )
        save_figure(figure, path)


def draw_psnr(path: Path, settings: DemoSettings, outcome: Outcome) -> None:
    """PSNR over the iterations, with and without the denoiser, and of bicubic interpolation."""
    start = outcome.start_db
    steps = np.arange(len(outcome.sigmas) + 1)
    curves = (
        ("plug-and-play", [start, *outcome.reconstructing.psnr_db], _RECONSTRUCTION),
        ("without the denoiser", [start, *outcome.without_denoiser.psnr_db], _PLAIN),
    )
    with mpl.rc_context(STYLE):
        figure = new_figure(6.6, 4.1)
        axes = figure.add_axes((0.105, 0.135, 0.62, 0.765))
        axes.axhline(outcome.bicubic_db, color=_BICUBIC, lw=1.4, ls=(0, (5, 3)))
        labels = [(outcome.bicubic_db, "bicubic, one frame", _BICUBIC)]
        for name, values, colour in curves:
            axes.plot(steps, values, "-o", color=colour, lw=2, ms=4.5, clip_on=False)
            labels.append((values[-1], name, colour))
        axes.set_xlim(0, steps[-1])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("iteration")
        axes.set_ylabel("PSNR (dB)")
        axes.grid(axis="y", color="#dddddd", lw=0.7)
        axes.set_axisbelow(True)
        axes.margins(y=0.08)
        axes.set_title(
            f"{settings.frames} frames, factor {settings.factor}, noise σ = {settings.noise:g}",
            loc="left",
        )
        low, high = axes.get_ylim()
        # Two lines of text need this much room, in dB.
        room = 0.13 * (high - low)
        for (value, name, colour), height in zip(
            labels, _apart([value for value, *_ in labels], room), strict=True
        ):
            axes.annotate(
                f"{name}\n{value:.2f} dB",
                (1.0, height),
                xytext=(10, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                color=colour,
                va="center",
                fontsize=10,
                annotation_clip=False,
            )
        save_figure(figure, path)


def detailed_windows(image: Tensor) -> list[tuple[int, int, int]]:
    """Two square windows with the most detail, far apart: (top, left, length), in pixels.

    They are chosen by the truth alone, so that no method is favoured.

    Parameters
    ----------
    image
        Shape ``(1, C, side, side)``.
    """
    side = int(image.shape[-1])
    length = max(24, round(side / 9))
    stride = max(1, length // 4)
    grey = image.mean(1, keepdim=True)
    change = grey.diff(dim=-1)[..., 1:, :].abs() + grey.diff(dim=-2)[..., 1:].abs()
    detail = avg_pool2d(change, length, stride)[0, 0]
    # Not at the border, where a reader wouldn't look for what is typical.
    detail[0, :] = detail[-1, :] = detail[:, 0] = detail[:, -1] = 0
    columns = detail.shape[1]
    order = detail.flatten().argsort(descending=True).tolist()
    corners = [(index // columns * stride, index % columns * stride) for index in order]
    top, left = corners[0]
    far = next(
        ((y, x) for y, x in corners if (y - top) ** 2 + (x - left) ** 2 > (side / 3) ** 2),
        corners[-1],
    )
    return [(top, left, length), (*far, length)]


def _score(decibels: float, image: Tensor, truth: Tensor) -> str:
    return f"{decibels:.2f} dB, SSIM {ssim(image, truth):.3f}"


def _pixels(image: Tensor) -> NDArray[Any]:
    """``(H, W)`` or ``(H, W, 3)``, in [0, 1], for matplotlib."""
    array: NDArray[Any] = image[0].clamp(0, 1).permute(1, 2, 0).numpy()
    return array[..., 0] if array.shape[-1] == 1 else array


def _apart(values: list[float], room: float) -> list[float]:
    """Move values up where they are closer than ``room``, keeping their order."""
    places = dict[int, float]()
    last = -float("inf")
    for index in sorted(range(len(values)), key=values.__getitem__):
        last = max(values[index], last + room)
        places[index] = last
    return [places[index] for index in range(len(values))]
