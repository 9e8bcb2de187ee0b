"""A problem that doesn't fit in memory where every rank holds it, and fits where it is sharded.

Both runs get the same limit from the kernel, the one of ``ulimit -d``: so many bytes more than what
libraries and operators take.
"""

from __future__ import annotations

import sys

import pytest

from tests.harness import LaunchResult, launch_script

RANKS = 4
SIDE = 2048
IMAGE = 3 * SIDE * SIDE * 4
ALLOWED = 7 * IMAGE // 2
"""About half way between the two: 119 MB and 285 MB were seen above what is there before."""

PROGRAM = """
import ctypes
import resource
import sys

import torch
from deepinv.optim import L2
from deepinv.physics import StackedLinearPhysics
from shardinv import DistributedContext, distribute
from shardinv.geometry import Box
from shardinv.problems import BlurDownsampling

# M_MMAP_THRESHOLD: freed memory of large blocks goes back at once, whatever was freed before.
assert ctypes.CDLL(None).mallopt(-3, 1_000_000)
layout, side, allowed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def limit(nbytes):
    soft = resource.RLIM_INFINITY if nbytes is None else status("VmData") + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (soft, resource.RLIM_INFINITY))


def picture(box):
    rows, columns = (torch.arange(a, b).float() for a, b in zip(box.start, box.stop))
    made = torch.empty(1, 3, *box.shape)
    for channel in range(3):
        torch.outer(
            torch.cos(0.05 * (channel + 1) * rows), torch.sin(0.07 * columns), out=made[0, channel]
        )
    return made


class Smooth(torch.nn.Module):
    def forward(self, x, sigma):
        return torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1)


with DistributedContext(device_mode="cpu", timeout=60) as ctx, torch.no_grad():
    torch.manual_seed(0)
    kernels = [torch.rand(1, 1, 5, 5) for _ in range(4)]
    operators = [BlurDownsampling(kernel / kernel.sum(), 2) for kernel in kernels]
    physics = distribute(StackedLinearPhysics(operators), ctx)
    fidelity = distribute(L2(), ctx)
    denoiser = distribute(
        Smooth(), ctx, type_object="denoiser", patch_size=256, overlap=16
    )

    def solve(layout, side):
        if layout == "sharded":
            x = ctx.from_function((1, 3, side, side), picture)
        else:
            x = picture(Box.whole((side, side)))
        y = physics.A(x, gather=False)
        for _ in range(2):
            x = x - 0.1 * fidelity.grad(x, y, physics)
            x = denoiser(x, sigma=0.03)
        return x

    # What is made at the first call is not the image's.
    for warm in ("sharded", "replicated"):
        solve(warm, 64)
    before = status("VmRSS")
    if allowed:
        limit(allowed)
    x = solve(layout, side)
    print(f"rank {ctx.rank} solved it, peak {(status('VmHWM') - before) / 1e6:.1f} MB", flush=True)
    if layout == "sharded":
        limit(None)
        error = (ctx.gather(x) - solve("replicated", side)).abs().max()
        print(f"rank {ctx.rank} error {float(error):.2g} right {bool(error < 1e-5)}", flush=True)
"""


def run(layout: str) -> LaunchResult:
    return launch_script(
        PROGRAM,
        RANKS,
        launcher="spawn",
        arguments=[layout, str(SIDE), str(ALLOWED)],
        timeout=240,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts mapped data for ulimit -d")
def test_sharded_fits_in_memory_that_is_too_little_for_replicated() -> None:
    sharded = run("sharded").check()
    for rank, out in enumerate(sharded.stdouts):
        assert f"rank {rank} solved it" in out
        assert f"rank {rank} error" in out
        assert "right True" in out, out
    replicated = run("replicated")
    assert all(code != 0 for code in replicated.returncodes), replicated.returncodes
    for rank, (out, err) in enumerate(zip(replicated.stdouts, replicated.stderrs, strict=True)):
        assert "solved it" not in out
        # Each rank says so, its own words or those of the one that ran out first.
        assert "can't allocate memory" in err or "Cannot allocate memory" in err, (
            f"rank {rank}: {err[-2000:]}"
        )
