"""Training steps that memory decides: the kernel's limit is the one of ``ulimit -d``.

Each is run with as many bytes more than what libraries, operators and weights take: a step that
keeps everything needs more, one that computes anew needs less; and likewise one rank and two.
"""

from __future__ import annotations

import sys

import pytest

from tests.harness import LaunchResult, launch_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts mapped data"),
]

PROGRAM = """
import ctypes
import resource
import sys

import torch
from deepinv.models import DnCNN
from deepinv.optim import PGD, PnP
from deepinv.optim.data_fidelity import L2
from deepinv.physics import Blur
from shardinv import DistributedContext, distribute

# M_MMAP_THRESHOLD: freed memory of large blocks goes back at once, whatever was freed before.
assert ctypes.CDLL(None).mallopt(-3, 1_000_000)
checkpoint, side, allowed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


torch.manual_seed(0)
with DistributedContext(device_mode="cpu", timeout=60) as ctx:
    model = distribute(
        PGD(
            data_fidelity=L2(),
            prior=PnP(DnCNN(1, 1, depth=4, nf=16, pretrained=None)),
            stepsize=0.5,
            sigma_denoiser=0.1,
            max_iter=4,
            unfold=True,
        ),
        ctx,
        patch_size=128,
        overlap=8,
        checkpoint=checkpoint,
    )
    physics = distribute(Blur(torch.ones(1, 1, 3, 3) / 9, padding="circular"), ctx)

    def step(side):
        x = ctx.shard(torch.rand(1, 1, side, side))
        with torch.no_grad():
            y = physics.A(x)
        loss = (model(y, physics) - x).square().mean()
        loss.backward()
        return sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)

    # What is made at the first call is not the step's.
    step(32)
    before = status("VmRSS")
    if allowed:
        limit = status("VmData") + allowed
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    model.zero_grad()
    gradient = step(side)
    print(f"gradient {gradient:.9g}; peak {(status('VmHWM') - before) / 1e6:.1f} MB", flush=True)
"""

SIDE = 512
ALLOWED = 215_000_000
"""Between the two: 283 MB and 164 MB were seen, on one rank and on two, where all is kept."""


def run(checkpoint: str, ranks: int) -> LaunchResult:
    return launch_script(
        PROGRAM,
        ranks,
        launcher="spawn",
        arguments=[checkpoint, str(SIDE), str(ALLOWED)],
        timeout=240,
    )


def gradients(result: LaunchResult) -> list[float]:
    return [float(out.split("gradient ")[1].split(";")[0]) for out in result.check().stdouts]


def test_step_that_memory_is_too_little_for() -> None:
    """Nothing told about memory: the limit of the process is found."""
    kept = run("never", 1)
    assert kept.returncodes[0] != 0
    assert "can't allocate memory" in kept.stderrs[0]

    chosen = run("auto", 1)
    found = gradients(chosen)
    assert "those of each batch of tiles are computed anew" in chosen.stderrs[0]

    shared = gradients(run("never", 2))
    assert shared[0] == shared[1] == pytest.approx(found[0], rel=1e-5)
