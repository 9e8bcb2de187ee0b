"""One rank of one measurement, in a process of its own; started by ``against_deepinv``.

The same lines run shardinv on replicated and on sharded images, ``deepinv.distributed`` and
undistributed DeepInverse: a plug-and-play iteration of eight operators and a denoiser on a colour
image. The time, memory and bytes of its iterations go to a file.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import OURS, PLAIN, SHARDED, Run
from benchmarks.counters import loopback_bytes, memory, restart_peak
from benchmarks.scene import scene

OPERATORS, SIGMA, STEP = 8, 0.03, 0.1


def operator(index: int, device: Any, factory_kwargs: dict[str, int]) -> Any:
    """An anisotropic blur, different for every index, and a down-sampling by two."""
    from deepinv.physics import Downsampling
    from deepinv.physics.functional import gaussian_blur

    size = factory_kwargs["size"]
    kernel = gaussian_blur(sigma=(1.0 + 0.1 * index, 2.0), angle=180.0 * index / OPERATORS)
    return Downsampling(img_size=(3, size, size), filter=kernel, factor=2, device=device)


def build(run: Run, network: Any) -> tuple[Any, Any, Any, Any]:
    """The context, physics, fidelity and denoiser of the system that is measured."""
    from deepinv.optim import L2
    from deepinv.physics import StackedLinearPhysics

    system, case, kwargs = run.system, run.case, {"size": run.case.size}
    if system == PLAIN:
        torch.set_num_threads(case.ranks)
        operators = [operator(index, "cpu", kwargs) for index in range(OPERATORS)]
        return None, StackedLinearPhysics(operators), L2(), network
    library = importlib.import_module("shardinv" if system == SHARDED else system)
    tiling = case.tiling
    assert tiling is not None
    ctx = library.DistributedContext(device_mode="cpu", seed=0, seed_offset=False)
    ctx.__enter__()
    physics = library.distribute(
        operator,
        ctx,
        type_object="linear_physics",
        num_operators=OPERATORS,
        factory_kwargs=kwargs,
        **({"strategy": "space"} if system == SHARDED else {}),
    )
    fidelity = library.distribute(L2(), ctx)
    denoiser = library.distribute(
        network,
        ctx,
        type_object="denoiser",
        patch_size=tiling.patch_size,
        overlap=tiling.overlap,
        max_batch_size=tiling.max_batch_size,
    )
    return ctx, physics, fidelity, denoiser


def measure(run: Run, network: Any) -> tuple[dict[str, Any], torch.Tensor]:
    """Run the iterations; returns what was counted, and the last iterate."""
    system, size = run.system, run.case.size
    ctx, physics, fidelity, denoiser = build(run, network)
    if system == SHARDED:
        truth = ctx.from_function((1, 3, size, size), lambda box: scene(box.start, box.stop))
    else:
        truth = scene((0, 0), (size, size))
    y = physics.A(truth)
    x = physics.A_adjoint(y) / OPERATORS * 4
    del truth

    def iterate(x: torch.Tensor) -> torch.Tensor:
        x = x - STEP * fidelity.grad(x, y, physics)
        return denoiser(x, sigma=SIGMA)

    def meet() -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()

    before = restart_peak()
    for _ in range(run.warm_up):
        x = iterate(x)
    meet()
    if system in (OURS, SHARDED):
        ctx.ledger.reset()
    seconds, sent = [], loopback_bytes()
    meet()
    processor = time.process_time()
    for _ in range(run.iterations):
        started = time.perf_counter()
        x = iterate(x)
        seconds.append(time.perf_counter() - started)
    processor = time.process_time() - processor
    booked = ctx.ledger.bytes_sent if system in (OURS, SHARDED) else None
    meet()
    sent = loopback_bytes() - sent
    counted = {
        "seconds": seconds,
        "processor_seconds": processor,
        "loopback_bytes": sent,
        "ledger_bytes": booked,
        "memory_peak_bytes": memory("VmHWM"),
        "memory_before_bytes": before,
    }
    if system == SHARDED:
        x = ctx.gather(x)  # to be compared; nothing is counted any more
    if ctx is not None:
        ctx.__exit__(None, None, None)
    return counted, x


def main() -> None:
    """Read the run named on the command line, measure it, write this rank's file."""
    folder = Path(sys.argv[1])
    run: Run = pickle.loads((folder / "run.pickle").read_bytes())
    warnings.filterwarnings("ignore")
    network = torch.load(folder.parent / f"{run.case.network}.pt", weights_only=False)
    with torch.no_grad():
        counted, x = measure(run, network)
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0:
        torch.save(x, folder / "iterate.pt")
    (folder / f"rank{rank}.json").write_text(json.dumps(counted))


if __name__ == "__main__":
    main()
