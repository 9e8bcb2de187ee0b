"""One rank of a memory measurement, in a process of its own; started by ``memory``.

A plug-and-play loop of down-sampled blurs and a denoiser, from images that nobody but the ranks
makes. What stays and what it takes at most goes to a file.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.counters import memory, restart_peak
from benchmarks.scene import scene

SIGMA, STEP = 0.03, 0.1


@dataclass(frozen=True)
class MemoryRun:
    """One measurement."""

    layout: str
    size: int
    ranks: int
    network: str
    frames: int
    patch_size: int
    overlap: int
    iterations: int


class Identity(torch.nn.Module):
    """A network of no cost, whose result is another tensor than its image."""

    def forward(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        return x.clone()


def measure(run: MemoryRun) -> dict[str, Any]:
    from deepinv.optim import L2

    from shardinv import DistributedContext, distribute
    from shardinv.problems import MultiFrame, load_denoiser

    network = load_denoiser("ffdnet") if run.network == "ffdnet" else Identity()
    with DistributedContext(device_mode="cpu", seed=0, seed_offset=False) as ctx:
        physics = distribute(MultiFrame(frames=run.frames, noise=0.0).stack(), ctx)
        fidelity = distribute(L2(), ctx)
        denoiser = distribute(
            network,
            ctx,
            type_object="denoiser",
            patch_size=run.patch_size,
            overlap=run.overlap,
        )

        def solve(size: int, iterations: int) -> tuple[Any, Any]:
            if run.layout == "sharded":
                x = ctx.from_function((1, 3, size, size), lambda box: scene(box.start, box.stop))
            else:
                x = scene((0, 0), (size, size))
            # Measurements stay with the ranks that made them, in both layouts.
            y = physics.A(x, gather=False)
            for _ in range(iterations):
                x = x - STEP * fidelity.grad(x, y, physics)
                x = denoiser(x, sigma=SIGMA)
            return x, y

        # Threads, connections, code: what the first call takes is not the image's.
        solve(128, 1)
        ctx.barrier()
        before = restart_peak()
        held = solve(run.size, run.iterations)
        ctx.barrier()
        peak = memory("VmHWM")
        rest = restart_peak()
        del held
    return {"before": before, "peak": peak, "rest": rest}


def main() -> None:
    """Read the run named on the command line, measure it, write this rank's file."""
    folder = Path(sys.argv[1])
    run: MemoryRun = pickle.loads((folder / "run.pickle").read_bytes())
    warnings.filterwarnings("ignore")
    with torch.no_grad():
        counted = measure(run)
    rank = int(os.environ.get("RANK", "0"))
    (folder / f"rank{rank}.json").write_text(json.dumps(counted))


if __name__ == "__main__":
    main()
