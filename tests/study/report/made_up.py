"""Measurements with values that a test can work out, as files in a folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shardinv.io import write_json
from shardinv.study.analysis.agreement import Agreement
from shardinv.study.analysis.communication import Cost
from shardinv.study.analysis.factors import Iteration, Work
from shardinv.study.analysis.timeline import Span
from shardinv.study.measurement import Energy, Kernels, Measurement, Memory
from shardinv.study.plan.point import Point

ITERATIONS = 8
MACHINE = {
    "time": "2026-01-02T03:04:05+00:00",
    "host": "node1",
    "cores": 4,
    "gpus": [],
    "load_before": 0.25,
    "versions": {"python": "3.11.2", "torch": "2.9.0"},
}


def measurement(**options: Any) -> Measurement:
    """An iteration on N ranks takes 0.1/N s in physics, and 0.8/N s in the denoiser.

    Of shardinv, the denoiser takes 1.2/N s on tiles; on several ranks 0.02 s of communication
    follow, half of them waiting. A repetition is 1 % slower than the one before.
    """
    point = Point(**{"size": 64, "tile": 32, "overlap": 8, "iterations": ITERATIONS} | options)
    ranks, slower = point.ranks, 1 + 0.01 * point.repeat
    own = point.system == "shardinv"
    talk = 0.01 * slower if own and ranks > 1 else 0.0
    denoiser = (1.2 if own else 0.8) * slower / ranks
    stages = {"physics": 0.1 * slower / ranks, "denoiser": denoiser, "rest": 0.0}
    total = sum(stages.values()) + 2 * talk
    iteration = Iteration(stages, talk, talk, total)
    several = own and ranks > 1
    cost = Cost("fidelity", "all_reduce", ITERATIONS, 6000, 8 * talk, 8 * talk, 0.001)
    pixels, tiled = point.pixels, point.pixels * 3 // 2
    return Measurement(
        point=point,
        psnr_db=[20.0 + k for k in range(ITERATIONS + 1)],
        ssim=[0.5 + 0.05 * k for k in range(ITERATIONS + 1)] if point.quality else [],
        agreement=_agreement(point),
        iterations=[[iteration] * ranks for _ in range(ITERATIONS)],
        costs=[[cost] if several else []] * ranks,
        work=Work(pixels, tiled, tiled, tiled, (tiled // ranks,) * ranks) if own else None,
        memory=[Memory(resident=(rank + 1) * 2**20) for rank in range(ranks)],
        energy=Energy(80.0 * ranks, "RAPL"),
        kernels=[Kernels(total, 0.7 * total, 0.1 * total, [("aten::convolution", 12, 0.5 * total)])]
        * ranks
        if point.profile else [],
        timeline=[_spans(stages, talk)] * ranks,
        machine=MACHINE,
    )  # fmt: skip


def _agreement(point: Point) -> dict[str, list[Agreement]]:
    if not point.quality or point.is_reference:
        return {}
    grows = [Agreement(1e-5 * 2**k, 1e-4 * 2**k, 1e-3, 2e-4 * 2**k) for k in range(ITERATIONS)]
    same = [Agreement(1e-8, 1e-7 * (1 + k % 2), 1e-6, 1e-7) for k in range(ITERATIONS)]
    start = Agreement(0.0, 0.0, 0.0, 0.0)
    return {"untiled": [start, *grows], "tiled": [start, *same]}


def _spans(stages: dict[str, float], talk: float) -> list[Span]:
    physics = stages["physics"] + 2 * talk
    end = physics + stages["denoiser"]
    found = [Span("physics", "stage", 0.0, physics), Span("denoiser", "stage", physics, end)]
    if talk:
        name, begin = "fidelity all_reduce", stages["physics"]
        found += [
            Span(name, "hidden", 0.0, begin, 750),
            Span(name, "hidden", 0.5 * begin, begin, 750),
            Span(name, "waiting", begin, begin + talk, 750),
            Span(name, "moving", begin + talk, physics, 750),
        ]
    return found


def study(**options: Any) -> list[Measurement]:
    """Strong scaling of all systems, with repetitions."""
    grid = [
        {"system": "deepinv"},
        *({"system": "deepinv.distributed", "ranks": ranks} for ranks in (1, 2, 4)),
        *(
            {"layout": layout, "ranks": ranks}
            for layout in ("replicated", "sharded")
            for ranks in (1, 2, 4)
        ),
    ]
    return [
        measurement(**settings, repeat=repeat, **options) for repeat in (0, 1) for settings in grid
    ]


def write(
    folder: Path, measurements: list[Measurement], plan: dict[str, Any] | None = None
) -> Path:
    """The files of a study."""
    for each in measurements:
        write_json(folder / "points" / f"{each.point.key}.json", each.record())
        if each.point.quality and each.point.repeat == 0:
            _pictures(folder / "images", each.point)
    if plan is not None:
        run = {
            "time": "2026-01-02T03:00:00+00:00",
            "command": "shardinv study run made_up.yaml",
            "checkout": {"commit": "0123456789abcdef", "changed": False},
        }
        write_json(folder / "study.json", {"study": plan, "runs": [run]})
    return folder


def _pictures(folder: Path, point: Point) -> None:
    folder.mkdir(exist_ok=True)
    y, x = np.mgrid[: point.size, : point.size] * (255 / point.size)
    for name, image in (("truth", x), ("start", y), ("end", (x + point.ranks) % 256)):
        picture = Image.fromarray(np.stack([image, y, x], -1).astype(np.uint8))
        picture.save(folder / f"{point.key}-{name}.png")
