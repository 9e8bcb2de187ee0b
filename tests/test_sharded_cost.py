"""What an iteration on a sharded image sends: the bytes of halos, and nothing else.

The loop is the seeds': a fidelity gradient and a denoiser. What the ledger books is held against
what follows from the boxes, what torch's profiler saw, and what the kernel counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from deepinv.optim import L2
from deepinv.physics import Downsampling
from deepinv.physics.functional import gaussian_blur
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.counters import INTERFACES, loopback_bytes
from shardinv import DistributedContext, distribute
from shardinv.exchange import all_reduce
from shardinv.geometry import Box
from shardinv.tensor import ShardedTensor
from tests.harness import WorkerPool

RANKS = 4
OPERATORS = 8
STEP, SIGMA = 0.1, 0.03


def operator(index: int, device: Any, factory_kwargs: dict[str, int]) -> Downsampling:
    """A blur, different for every index, and a down-sampling by two."""
    side = factory_kwargs["side"]
    kernel = gaussian_blur(sigma=(1.0 + 0.1 * index, 2.0), angle=180.0 * index / OPERATORS)
    made = Downsampling(img_size=(3, 64, 64), filter=kernel, factor=2, device=device)
    # It is of this size. Made so, each would bring 400 MB of Fourier coefficients at 4096², for a
    # proximal operator that is not used here.
    made.imsize = (3, side, side)
    return made


class Smooth(nn.Module):
    """Costs next to nothing, and looks at its neighbours as a denoiser does."""

    def forward(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1) * (1 - sigma) + x * sigma


def picture(box: Box, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The pixels of a box ``(1, 3, *box.shape)`` of an image that has no end."""
    rows, columns = (
        torch.arange(a, b, dtype=torch.float32) for a, b in zip(box.start, box.stop, strict=True)
    )
    planes = [
        torch.cos(0.05 * (c + 1) * rows)[:, None] * torch.sin(0.07 * columns + c)[None]
        for c in range(3)
    ]
    return torch.stack(planes)[None].to(dtype)


class Loop:
    """The problem on a context, and one iteration of it."""

    def __init__(
        self,
        ctx: DistributedContext,
        side: int,
        patch: int,
        overlap: int,
        *,
        operators: int = OPERATORS,
        strategy: str | None = "space",
    ) -> None:
        self.ctx, self.shape = ctx, (1, 3, side, side)
        self.physics = distribute(
            operator,
            ctx,
            type_object="linear_physics",
            num_operators=operators,
            factory_kwargs={"side": side},
            strategy=strategy,
        )
        self.fidelity = distribute(L2(), ctx)
        self.denoiser = distribute(
            Smooth(), ctx, type_object="denoiser", patch_size=patch, overlap=overlap
        )
        self.x = ctx.from_function(self.shape, picture)
        self.y = self.physics.A(self.x, gather=False)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        x = x - STEP * self.fidelity.grad(x, self.y, self.physics)
        result: torch.Tensor = self.denoiser(x, sigma=SIGMA)
        return result

    @property
    def image_bytes(self) -> int:
        return 3 * self.shape[2] * self.shape[3] * 4

    def halo_bytes_of_denoiser(self) -> int:
        """What this rank sends in a call according to the boxes: halos, and tiles of others."""
        assert isinstance(self.x, ShardedTensor)
        schedule = self.denoiser.schedule(self.shape[2:], self.x.sharding)
        return sum(schedule.pixels_sent[self.ctx.rank]) * 3 * 4

    def predicted(self) -> dict[tuple[str, str], int]:
        """What this rank sends in an iteration by space according to the boxes."""
        calls = self.physics.bytes_per_call(self.shape)
        both_ways = calls["A"][self.ctx.rank] + calls["A_adjoint"][self.ctx.rank]
        halo, home = self.denoiser.schedule(self.shape[2:], self.x.sharding).pixels_sent[
            self.ctx.rank
        ]
        return {
            ("physics", "halo"): both_ways,
            ("denoiser", "halo"): 12 * halo,
            ("denoiser", "realign"): 12 * home,
        }


def booked(ctx: DistributedContext, call: Callable[[], Any]) -> dict[tuple[str, str], int]:
    ctx.ledger.reset()
    call()
    return {(e.block, e.operation): e.bytes_sent for e in ctx.ledger.entries()}


@torch.no_grad()
def iteration(
    ctx: DistributedContext, side: int, patch: int, overlap: int, options: dict[str, Any]
) -> dict[str, Any]:
    loop = Loop(ctx, side, patch, overlap, **options)
    found = booked(ctx, lambda: loop.step(loop.x))
    return {
        "booked": found,
        "predicted": loop.predicted(),
        "sent": sum(found.values()),
        "image": loop.image_bytes,
        "told": loop.physics.describe() + loop.denoiser.describe(),
    }


def check_iteration(results: list[dict[str, Any]], what: str) -> float:
    """Assert that each rank sent what was predicted, of halos; the most, relative to the image."""
    for rank, found in enumerate(results):
        assert found["booked"] == found["predicted"], f"{what}, rank {rank}"
        for block in ("physics", "denoiser"):
            assert found["booked"][block, "halo"] > 0, f"{what}, rank {rank}: {block}"
        # What describe() prints are these numbers.
        halo = found["predicted"]["denoiser", "halo"] // 12
        assert f"rank {rank}: {halo} of the halo" in found["told"]
        there = found["predicted"]["physics", "halo"]
        assert there % 2 == 0
        assert f"sends {there // 2} B in A, {there // 2} B in A_adjoint" in found["told"]
    return max(found["sent"] / found["image"] for found in results)


def test_only_halos_are_sent_and_as_predicted(pool: WorkerPool) -> None:
    shares = []
    for side in (256, 512, 1024):
        # Operators share one halo: two send what eight do (see below), and are quicker.
        some = {"operators": 2} if side > 256 else {}
        results = pool.run(iteration, side, 64, 8, some, world_size=RANKS, timeout=240)
        shares.append(check_iteration(results, f"{side}²"))
        # Tiles lie within the boxes: nothing but halos.
        assert all(found["booked"]["denoiser", "realign"] == 0 for found in results)
    for small, large in pairwise(shares):
        # Twice the border around four times the pixels; corners make up the rest.
        assert small / large == pytest.approx(2.0, rel=0.05), shares


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_as_predicted_where_tiles_cross_the_boxes(pool: WorkerPool, world_size: int) -> None:
    for side, patch, overlap in [(150, 32, 8), (206, 64, 16)]:
        results = pool.run(iteration, side, patch, overlap, {}, world_size=world_size, timeout=240)
        for rank, found in enumerate(results):
            assert found["booked"] == found["predicted"], f"{side}², rank {rank}"
        assert any(found["booked"]["denoiser", "realign"] > 0 for found in results)


@pytest.mark.slow
def test_under_two_per_cent_of_an_image_of_4096(pool: WorkerPool) -> None:
    results = pool.run(iteration, 4096, 256, 32, {"operators": 2}, world_size=RANKS, timeout=240)
    share = check_iteration(results, "4096²")
    assert 0 < share < 0.02, share


def test_operators_share_one_halo(pool: WorkerPool) -> None:
    two, eight = (
        pool.run(iteration, 256, 64, 8, {"operators": n}, world_size=RANKS, timeout=240)
        for n in (2, OPERATORS)
    )
    assert [found["booked"] for found in two] == [found["booked"] for found in eight]


# -- global operators ------------------------------------------------------------------------------


@torch.no_grad()
def global_iteration(ctx: DistributedContext, side: int) -> dict[str, Any]:
    loop = Loop(ctx, side, 64, 8, strategy="operator")
    found = booked(ctx, lambda: loop.step(loop.x))
    return {"booked": found, "denoiser": loop.halo_bytes_of_denoiser(), "image": loop.image_bytes}


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_global_operators_send_a_gather_and_a_reduce_scatter(
    pool: WorkerPool, world_size: int
) -> None:
    for rank, found in enumerate(pool.run(global_iteration, 192, world_size=world_size)):
        image, sent = found["image"], found["booked"]
        operations = sorted(name for block, name in sent if block != "denoiser")
        assert operations == ["gather", "reduce_scatter"], sent
        physics = sum(n for (block, _), n in sent.items() if block != "denoiser")
        assert physics <= 2 * (world_size - 1) * image / world_size, f"rank {rank}"
        halos = sum(n for (block, _), n in sent.items() if block == "denoiser")
        assert halos == found["denoiser"], f"rank {rank}"


# -- nothing behind the user's back ----------------------------------------------------------------


@torch.no_grad()
def watched_loop(ctx: DistributedContext) -> dict[str, Any]:
    """Three iterations with what a user watches: change, cost, norm of the gradient."""
    loop = Loop(ctx, 256, 64, 8, operators=3)
    x = loop.step(loop.x)
    ctx.ledger.reset()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(3):
            new = loop.step(x)
            change = float((new - x).norm() / x.norm())
            cost = float(loop.fidelity(new, loop.y, loop.physics).sum())
            assert isinstance(new, ShardedTensor)
            assert change > 0 and cost > 0, (change, cost)  # noqa: PT018
            x = new
    sends = [
        event.input_shapes[0][0]
        for event in recorded.events()
        if event.name in ("gloo:send", "gloo:isend")
    ]
    return {
        "entries": [(e.operation, e.calls, e.bytes_sent) for e in ctx.ledger.entries()],
        "sends": sends,
        "collectives": sorted({e.name for e in recorded.events() if e.name.startswith("gloo:")}),
        "local": x.to_local().nbytes,
    }


def test_no_block_gathers_the_image_and_the_profiler_agrees(pool: WorkerPool) -> None:
    for rank, found in enumerate(pool.run(watched_loop, world_size=RANKS, timeout=240)):
        booked_halos = 0
        for operation, calls, sent in found["entries"]:
            assert operation in ("halo", "realign", "all_reduce"), f"rank {rank}: {operation}"
            if operation == "all_reduce":
                # Norms and costs: a number for each image of the batch.
                assert sent <= 64 * calls, f"rank {rank}: {sent} bytes in {calls} sums"
            else:
                booked_halos += sent
        # Below the ledger: the messages that gloo was handed, of bytes.
        assert sum(found["sends"]) == booked_halos, f"rank {rank}"
        assert max(found["sends"]) < found["local"] / 4, f"rank {rank}"
        assert set(found["collectives"]) <= {"gloo:send", "gloo:recv", "gloo:all_reduce"}


# -- the kernel's counter --------------------------------------------------------------------------


@torch.no_grad()
def counted_loop(ctx: DistributedContext) -> tuple[int, int, float]:
    """Bytes of a loop by the kernel, by the ledgers of all ranks, and others' by an estimate."""

    def quiet_rate(seconds: float) -> float:
        before = loopback_bytes()
        time.sleep(seconds)
        return (loopback_bytes() - before) / seconds

    loop = Loop(ctx, 512, 128, 32, operators=2)
    x = loop.step(loop.x)
    ctx.barrier()
    noise = quiet_rate(0.2) if ctx.rank == 0 else 0.0
    ctx.barrier()
    ctx.ledger.reset()
    before, began = loopback_bytes(), time.monotonic()
    ctx.barrier()
    for _ in range(6):
        x = loop.step(x)
    ctx.barrier()
    moved, seconds = loopback_bytes() - before, time.monotonic() - began
    ctx.barrier()
    if ctx.rank == 0:
        noise = max(noise, quiet_rate(0.2))
    ctx.barrier()
    told = int(all_reduce(ctx.comm, torch.tensor(ctx.ledger.bytes_sent)))
    return moved, told, noise * seconds


@pytest.mark.skipif(not INTERFACES.exists(), reason="no /proc/net/dev: the kernel doesn't tell")
def test_kernel_counts_the_same_bytes(pool: WorkerPool) -> None:
    seen = []
    for _ in range(3):
        moved, told, others = pool.run(counted_loop, world_size=RANKS, timeout=240)[0]
        # Headers of packets and of gloo's messages come on top.
        if others <= 0.05 * told and abs(moved - told) <= 0.1 * told:
            return
        seen.append((moved, told, others))
        # What should be there must be there, whatever else is going on.
        assert moved >= 0.98 * told, seen
    if all(others > 0.05 * told for _, told, others in seen):
        pytest.skip(f"other traffic on the loopback interface: (moved, told, others') {seen}")
    pytest.fail(f"bytes by the kernel, by the ledgers, and others' by estimate: {seen}")
