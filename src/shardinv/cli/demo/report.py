"""What the demo prints and writes."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from shardinv.cli.demo.outcome import Outcome
from shardinv.cli.demo.scene import Scene
from shardinv.cli.demo.settings import DemoSettings
from shardinv.cli.versions import versions
from shardinv.io import write_image, write_json


def print_header(settings: DemoSettings, scene: Scene, outcome: Outcome) -> None:
    """Say what will be done, before it takes its time."""
    side, coarse = scene.side, scene.side // settings.factor
    origin = f"{settings.photograph}, the middle {side} × {side} pixels"
    if scene.mirrored:
        origin = (
            f"{settings.photograph}, continued by mirror images to {side} × {side} pixels "
            "(a test image, not a photograph, of that size)"
        )
    workers = "1 process" if outcome.ranks == 1 else f"{outcome.ranks} processes"
    if outcome.backend is not None:
        workers += f" with {outcome.backend}"
    workers += f" on {outcome.device}"
    if outcome.device == "CPU":
        workers += f", {outcome.threads} thread{'s' * (outcome.threads > 1)} each"
    count = len(outcome.tiles.tiles)
    tiles = f"{count} tiles" if count > 1 else "1 tile"
    height, width = max(tile.core.shape for tile in outcome.tiles.tiles)
    print(f"photograph     {origin}")
    frames = f"{settings.frames} frames" if settings.frames > 1 else "1 frame"
    print(f"measurements   {frames} of {coarse} × {coarse} pixels, noise {settings.noise:g}")
    print(f"denoiser       {settings.denoiser} on {tiles} of at most {height} × {width} pixels,")
    print(
        f"               halo {outcome.tiles.halo[0]}, work multiplier "
        f"{outcome.tiles.work_multiplier:.2f}, imbalance {outcome.imbalance:.2f}"
    )
    print(f"running on     {workers}")
    if outcome.mesh is not None and outcome.box is not None:
        mesh, box = (" × ".join(map(str, numbers)) for numbers in (outcome.mesh, outcome.box))
        print(f"image          sharded on a mesh of {mesh}, at most {box} pixels each")
    if outcome.resumed_after:
        print(f"resumed        after iteration {outcome.resumed_after}")
    print(flush=True)


def write_outputs(
    settings: DemoSettings, scene: Scene, outcome: Outcome, began: float
) -> list[Path]:
    """Write the reconstruction, the figures and ``result.json``; returns their paths."""
    # Matplotlib takes its time to load, and only rank 0 draws.
    from shardinv.cli.demo.figures import draw_comparison, draw_psnr

    assert outcome.reconstruction is not None
    folder = settings.output
    names = ("reconstruction.png", "comparison.png", "psnr.png", "result.json")
    image, comparison, trajectory, result = (folder / name for name in names)
    write_image(image, outcome.reconstruction)
    draw_comparison(comparison, settings, scene, outcome)
    draw_psnr(trajectory, settings, outcome)
    write_json(result, _result(settings, scene, outcome, time.perf_counter() - began))
    # Of an earlier run that failed.
    (folder / "error.txt").unlink(missing_ok=True)
    return [image, comparison, trajectory, result]


def print_summary(outcome: Outcome, files: list[Path]) -> None:
    """Say in a few lines what was done."""
    gain = outcome.reconstruction_db - outcome.bicubic_db
    alone = outcome.without_denoiser.psnr_db
    lines = [
        "",
        f"PSNR {outcome.reconstruction_db:.2f} dB: {gain:+.2f} dB against bicubic interpolation of "
        f"one frame ({outcome.bicubic_db:.2f} dB)",
        f"without the denoiser the same solver ends at {alone[-1]:.2f} dB ({max(alone):.2f} dB at "
        "its best iteration)",
        f"{outcome.seconds_per_iteration:.2f} s an iteration; each rank sends "
        f"{outcome.bytes_per_iteration / 1e6:.2f} MB an iteration",
    ]
    if outcome.check is not None:
        lines.append(
            f"largest difference to the undistributed run: "
            f"{max(outcome.check.psnr_differences):.1e} dB, relative error "
            f"{max(outcome.check.relative_errors):.1e} "
            f"(over {len(outcome.check.seconds)} iterations)"
        )
    lines.append(f"written: {', '.join(str(path) for path in files)}")
    print("\n".join(lines), flush=True)


def _result(
    settings: DemoSettings, scene: Scene, outcome: Outcome, total_seconds: float
) -> dict[str, Any]:
    """The content of ``result.json``; lengths in pixels, times in seconds."""
    track = outcome.reconstructing
    timings: dict[str, Any] = {
        "seconds_per_iteration": outcome.seconds_per_iteration,
        "iterations": track.seconds,
        "without_denoiser_seconds_per_iteration": median(outcome.without_denoiser.seconds),
        "setup": outcome.setup_seconds,
        "total": total_seconds,
    }
    result: dict[str, Any] = {
        "settings": settings.model_dump(mode="json")
        | {
            # What was left open, as it was chosen.
            "size": scene.side,
            "processes": outcome.ranks,
            "sigma": outcome.sigmas[0],
            "sigma_end": outcome.sigmas[-1],
            # What follows from the settings and the machine.
            "mirrored": scene.mirrored,
            "step_size": outcome.step,
            "backend": outcome.backend,
            "hardware": outcome.device,
            "threads": outcome.threads,
            "mesh": outcome.mesh,
            "resumed_after": outcome.resumed_after,
        },
        "versions": versions(),
        "timings": timings,
        "ledger": [
            {
                "rank": rank,
                "bytes_sent": sum(one.bytes_sent),
                "calls": sum(one.calls),
                "bytes_sent_per_iteration": one.last_bytes,
                "calls_per_iteration": one.calls[-1] if one.calls else 0,
                "table": one.table,
            }
            for rank, one in enumerate(outcome.tracks)
        ],
        "psnr_db": {
            "bicubic": outcome.bicubic_db,
            "without_denoiser": outcome.without_denoiser.psnr_db[-1],
            "reconstruction": outcome.reconstruction_db,
            "per_iteration": track.psnr_db,
        },
    }
    if outcome.check is not None:
        timings["undistributed_seconds_per_iteration"] = median(outcome.check.seconds)
        result["check"] = {
            "max_psnr_difference_db": max(outcome.check.psnr_differences),
            "relative_error": max(outcome.check.relative_errors),
        }
    return result
