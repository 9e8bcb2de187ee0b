"""One rank of one measurement of training, in a process of its own; started by ``training``.

The same lines train an unrolled proximal gradient descent with shardinv, with
``deepinv.distributed`` and with undistributed DeepInverse: frames of a colour image, blurred and
down-sampled, a network as prior, and a step of Adam.
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
from deepinv.optim import L2, PGD
from deepinv.optim.prior import PnP

from benchmarks.case import OURS, PEER, PLAIN, SHARDED
from benchmarks.counters import loopback_bytes, memory, restart_peak
from benchmarks.measured import operator
from benchmarks.scene import scene


def build(run: dict[str, Any], network: torch.nn.Module) -> tuple[Any, Any, Any]:
    """The context, the operators and the unrolled solver of the system that is measured."""
    from deepinv.physics import StackedLinearPhysics

    system, kwargs = run["system"], {"size": run["size"]}
    iterations, count = run["iterations"], run["operators"]
    model = PGD(
        data_fidelity=L2(),
        prior=PnP(network),
        stepsize=[0.5] * iterations,
        sigma_denoiser=0.05,
        max_iter=iterations,
        unfold=True,
        trainable_params=["stepsize"],
    )
    if system == PLAIN:
        torch.set_num_threads(run["ranks"])
        return None, StackedLinearPhysics([operator(i, "cpu", kwargs) for i in range(count)]), model
    library = importlib.import_module("shardinv" if system == SHARDED else system)
    ctx = library.DistributedContext(device_mode="cpu", seed=0, seed_offset=False)
    ctx.__enter__()
    physics = library.distribute(
        operator,
        ctx,
        type_object="linear_physics",
        num_operators=count,
        factory_kwargs=kwargs,
        **({"strategy": "space"} if system == SHARDED else {}),
    )
    tiling = run["tiling"]
    model = library.distribute(
        model,
        ctx,
        patch_size=tiling.patch_size,
        overlap=tiling.overlap,
        max_batch_size=tiling.max_batch_size,
        checkpoint_batches=run["checkpoint"],
    )
    return ctx, physics, model


def measure(run: dict[str, Any], network: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Train; returns what was counted, and the gradients of the first step."""
    system, size = run["system"], run["size"]
    ctx, physics, model = build(run, network)
    if system == SHARDED:
        truth = ctx.from_function((1, 3, size, size), lambda box: scene(box.start, box.stop))
    else:
        truth = scene((0, 0), (size, size))
    with torch.no_grad():
        y = physics.A(truth)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def meet() -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()

    seconds: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    before, sent = restart_peak(), 0
    for number in range(run["warm_up"] + run["steps"]):
        if number == run["warm_up"]:
            meet()
            sent = loopback_bytes()
        meet()
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = (model(y, physics) - truth).square().mean()
        loss.backward()
        optimizer.step()
        elapsed = time.perf_counter() - started
        if number == 0:
            names = [n for n, p in model.named_parameters() if p.grad is not None]
            own = dict(model.named_parameters())
            gradients = {_plain(n): own[n].grad.detach().clone() for n in names}
        if number >= run["warm_up"]:
            seconds.append(elapsed)
    meet()
    sent = loopback_bytes() - sent
    counted = {
        "seconds": seconds,
        "loopback_bytes": sent,
        "memory_peak_bytes": memory("VmHWM"),
        "memory_before_bytes": before,
        "loss": float(loss),
    }
    if ctx is not None:
        ctx.__exit__(None, None, None)
    return counted, gradients


def _plain(name: str) -> str:
    """A parameter's name undistributed: the peer's block adds one of its own."""
    return name.replace("denoiser.processor.", "denoiser.")


def main() -> None:
    """Read the run named on the command line, measure it, write this rank's file."""
    folder = Path(sys.argv[1])
    run = pickle.loads((folder / "run.pickle").read_bytes())
    assert run["system"] in (OURS, PEER, PLAIN, SHARDED)
    warnings.filterwarnings("ignore")
    network = torch.load(folder.parent / "network.pt", weights_only=False)
    counted, gradients = measure(run, network)
    rank = int(os.environ.get("RANK", "0"))
    # Each rank's: a gradient that is right on some ranks only is wrong.
    torch.save(gradients, folder / f"gradients{rank}.pt")
    (folder / f"rank{rank}.json").write_text(json.dumps(counted))


if __name__ == "__main__":
    main()
