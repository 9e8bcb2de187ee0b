"""What a call sends: one gather in which each pixel is sent once, and nothing else once warm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shardinv import DistributedContext, distribute
from tests.denoise.networks import Conditioned
from tests.harness import WorkerPool


def without_seconds(ctx: DistributedContext) -> list[dict[str, Any]]:
    rows = [
        {name: value for name, value in row.items() if not name.startswith("seconds")}
        for row in ctx.ledger.table()
    ]
    ctx.ledger.reset()
    return rows


def traffic(ctx: DistributedContext) -> dict[str, Any]:
    network = Conditioned(1, 2)
    block = distribute(network, ctx, patch_size=10, overlap=2)
    x = torch.rand(1, 1, 20, 24, dtype=torch.float64)
    found: dict[str, Any] = {"making": without_seconds(ctx)}
    with torch.no_grad():
        block(x, 0.1)
        found["first"] = without_seconds(ctx)
        told = ctx.comm.agreements
        for _ in range(2):
            block(x, 0.1)
        found["two more"] = without_seconds(ctx)
        found["told"] = ctx.comm.agreements - told
        block(x, 0.1, gather=False)
        found["not gathered"] = without_seconds(ctx)
    for step in ("first gradient", "second gradient"):
        told = ctx.comm.agreements
        leaf = x.clone().requires_grad_()
        block(leaf, 0.1).square().sum().backward()
        found[step] = without_seconds(ctx)
        found["told in " + step] = ctx.comm.agreements - told
    leaf = x.clone().requires_grad_()
    block(block(leaf, 0.1)[:, :1], 0.1).square().sum().backward()
    found["two calls"] = without_seconds(ctx)
    found["numbers"] = sum(p.numel() for p in block.parameters())
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_messages_of_a_call(pool: WorkerPool, world_size: int) -> None:
    for rank, found in enumerate(pool.run(traffic, world_size=world_size)):
        if world_size == 1:
            assert not any(found[name] for name in found if name != "numbers")
            continue
        others = world_size - 1
        weights = 8 * found["numbers"]
        assert found["making"] == [
            {
                "block": "denoiser",
                "operation": "broadcast",
                "calls": 1,
                "bytes_sent": weights if rank == 0 else 0,
            }
        ]
        whole = 8 * 2 * 20 * 24  # two channels come out
        gather = {
            "block": "denoiser",
            "operation": "gather",
            "calls": 1,
            "bytes_sent": whole * others // world_size,
        }
        assert found["first"] == [gather]
        assert found["two more"] == [{**gather, "calls": 2, "bytes_sent": 2 * gather["bytes_sent"]}]
        assert found["told"] == 0
        assert found["not gathered"] == []

        # Backward: the image's gradient in one sum a call, all weights' in one, however many calls.
        image = 2 * others * (8 * 20 * 24) // world_size
        weight = 2 * others * weights // world_size
        summed = {"block": "denoiser (backward)", "operation": "all_reduce"}
        once = {**summed, "calls": 2, "bytes_sent": image + weight}
        for step in ("first gradient", "second gradient", "two calls"):
            agreement = found[step].pop()
            assert (agreement["block"], agreement["calls"]) == ("agreement (backward)", 1)
        assert found["first gradient"] == [gather, once]
        assert found["second gradient"] == [gather, once]
        twice = {**gather, "calls": 2, "bytes_sent": 2 * gather["bytes_sent"]}
        assert found["two calls"] == [
            twice,
            {**summed, "calls": 3, "bytes_sent": 2 * image + weight},
        ]
        assert found["told in second gradient"] == 0


def image_sent_once(ctx: DistributedContext) -> int:
    block = distribute(torch.nn.Identity(), ctx, patch_size=9, overlap=2)
    sent = 0
    for dtype in (torch.float16, torch.complex128):
        x = torch.ones(1, 1, 31, 17, dtype=dtype)
        ctx.ledger.reset()
        block(x)
        assert ctx.ledger.calls == 1
        sent += ctx.ledger.bytes_sent
    return sent


def test_bytes_follow_the_type(pool: WorkerPool) -> None:
    assert pool.run(image_sent_once, world_size=2) == [31 * 17 * (2 + 16) // 2] * 2
