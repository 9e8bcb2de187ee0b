"""Checks of images: what is refused at once, and what ranks must agree on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shardinv import DistributedContext
from shardinv.blocks import check_image, check_values
from shardinv.exchange import FirstUse, TensorSpec
from tests.harness import WorkerPool, assert_every_rank_raised


def checked(ctx: DistributedContext, x: Tensor) -> TensorSpec:
    return check_image(ctx, FirstUse(ctx.comm, every_call=ctx.debug), x)


def test_what_is_no_image_is_refused() -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        assert checked(ctx, torch.rand(1, 2, 3)) == TensorSpec((1, 2, 3), torch.float32)
        with pytest.raises(TypeError, match=r"the image must be a tensor.*got a float"):
            checked(ctx, 1.0)
        with pytest.raises(ValueError, match=r"the image is on meta, rank 0 works on cpu"):
            checked(ctx, torch.empty(1, 1, 2, device="meta"))


def asked_once(ctx: DistributedContext) -> int:
    first_use = FirstUse(ctx.comm)
    x = torch.rand(1, 1, 4)
    for _ in range(3):
        check_image(ctx, first_use, x)
    assert check_image(ctx, first_use, x, "another image").shape == (1, 1, 4)
    check_image(ctx, first_use, x.clone().requires_grad_())
    with torch.no_grad():
        check_image(ctx, first_use, x.clone().requires_grad_())
    return ctx.comm.agreements


def test_ranks_are_asked_once_for_each_kind(pool: WorkerPool) -> None:
    assert pool.run(asked_once, world_size=2) == [3, 3]


def disagreeing(ctx: DistributedContext, what: str) -> None:
    x = torch.rand(1, 1, 4)
    if ctx.rank == 1:
        changes = {
            "shape": lambda: torch.rand(1, 1, 5),
            "type": lambda: x.double(),
            "gradient": lambda: x.requires_grad_(),
            "values": lambda: x + 1.0,
        }
        x = changes[what]()
    checked(ctx, x)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "shape",
            r"rank 0: \(\(1, 1, 4\), torch.float32, replicated, False\); rank 1: \(\(1, 1, 5\)",
        ),
        ("type", "rank 1: .*torch.float64"),
        ("gradient", "rank 1: .*True"),
    ],
)
def test_shape_type_and_need_of_a_gradient(pool: WorkerPool, what: str, text: str) -> None:
    outcomes = pool.run(disagreeing, what, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, text)


def test_values_are_compared_in_debug_mode_only(pool: WorkerPool) -> None:
    pool.run(disagreeing, "values", world_size=2)
    outcomes = pool.run(
        disagreeing, "values", world_size=2, context={"debug": True}, expect_error=True
    )
    assert_every_rank_raised(outcomes, ValueError, r"values of the image.*ctx\.broadcast\(x\)")


def sums_of_values(ctx: DistributedContext) -> None:
    many = [torch.rand(3, dtype=torch.float16), torch.arange(3), torch.tensor([1 + 2j])]
    check_values(ctx, "a few tensors", *many)
    check_values(ctx, "none")
    with pytest.raises(ValueError, match="a few tensors"):
        check_values(ctx, "a few tensors", many[0], many[1] + ctx.rank)
    with pytest.raises(ValueError, match="a conjugate"):
        # The magnitudes are alike, the sums are not.
        check_values(ctx, "a conjugate", many[2].conj() if ctx.rank else many[2])


def test_values_of_any_type(pool: WorkerPool) -> None:
    pool.run(sums_of_values, world_size=2)
