"""Which way operators are distributed: chosen for the user, or asked for; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import Blur, Inpainting, StackedLinearPhysics

from shardinv import DistributedContext, distribute
from shardinv.physics import (
    DistributedLocalPhysics,
    DistributedLocalStack,
    DistributedStackByLayout,
    DistributedStackedLinearPhysics,
    DistributedStackedPhysics,
)
from shardinv.physics.space import NotLocalError
from shardinv.tensor import ShardedTensor
from tests.harness import WorkerPool, assert_close, assert_every_rank_raised
from tests.physics.stacks import (
    IMAGE,
    SUMMATION,
    Dense,
    image,
    kernel,
    linear_operators,
    nonlinear_operators,
    quiet,
)


def local_operators() -> list[Any]:
    with quiet():
        return [
            Blur(kernel(1), padding="circular"),
            Inpainting(img_size=IMAGE, mask=torch.ones(IMAGE, dtype=torch.float64)),
            Blur(kernel(2, 4), padding="reflect"),
        ]


def test_the_choice() -> None:
    with DistributedContext() as ctx, quiet():
        cases = [
            (local_operators(), {}, DistributedStackByLayout),
            (StackedLinearPhysics(local_operators()), {}, DistributedStackByLayout),
            (local_operators(), {"strategy": "operator"}, DistributedStackedLinearPhysics),
            (local_operators(), {"strategy": "space"}, DistributedLocalStack),
            (local_operators()[0], {}, DistributedLocalPhysics),
            (local_operators()[0], {"strategy": "space"}, DistributedLocalPhysics),
            (linear_operators(4), {}, DistributedStackedLinearPhysics),
            (nonlinear_operators(2), {}, DistributedStackedPhysics),
        ]
        for source, options, kind in cases:
            found = distribute(source, ctx, **options)
            assert type(found) is kind
            assert distribute(found, ctx) is found


def answers_in_kind(ctx: DistributedContext) -> None:
    x = image()
    with quiet():
        reference = StackedLinearPhysics(local_operators())
    wanted = reference.A(x)
    for strategy in (None, "space", "operator"):
        with quiet():
            physics = distribute(local_operators(), ctx, strategy=strategy)
        plain = physics.A(x)
        assert all(not isinstance(entry, ShardedTensor) for entry in plain)
        assert_close(list(plain), list(wanted), SUMMATION, f"replicated, {strategy}")
        sharded = physics.A(ctx.shard(x))
        by_space = strategy != "operator"
        assert all(isinstance(entry, ShardedTensor) is by_space for entry in sharded)
        found = physics.A_adjoint_A(ctx.shard(x))
        assert_close(found.full_tensor(), reference.A_adjoint_A(x), SUMMATION, f"{strategy}")
        # Measurements of either layout go with an image of either.
        layout = found.sharding
        for measured in (plain, sharded):
            back = physics.A_adjoint(measured, layout=layout)
            assert_close(back.full_tensor(), reference.A_adjoint(wanted), SUMMATION, f"{strategy}")


@pytest.mark.parametrize("world_size", (1, 3))
def test_answers_in_kind(pool: WorkerPool, world_size: int) -> None:
    pool.run(answers_in_kind, world_size=world_size)


def test_description() -> None:
    with DistributedContext() as ctx, quiet():
        text = distribute(local_operators(), ctx).describe()
        assert "by operator, dealt by cost" in text
        assert "on a sharded image, by space" in text
        single = distribute(local_operators()[0], ctx)
        single.A(ctx.shard(image()))
        for words in ("halo", "work multiplier W", "imbalance", "sends 0 B in A"):
            assert words in single.describe()


def refuse(ctx: DistributedContext, case: str) -> None:
    local = local_operators()
    cases = {
        "global by space": lambda: distribute([*local, Dense(3, 0)], ctx, strategy="space"),
        "one global by space": lambda: distribute(Dense(3, 0), ctx, strategy="space"),
        "one by operator": lambda: distribute(local[0], ctx, strategy="operator"),
        "unknown": lambda: distribute(local, ctx, strategy="time"),
        "mesh by operator": lambda: distribute(local, ctx, mesh=(1, 1)),
    }
    cases[case]()


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("global by space", NotLocalError, "Dense has no local form"),
        ("one global by space", NotLocalError, "Dense has no local form"),
        ("one by operator", ValueError, "a single Blur cannot be dealt"),
        ("unknown", ValueError, "strategy must be 'space', 'operator' or None"),
        ("mesh by operator", TypeError, "for strategy='space'"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        refuse(DistributedContext(), case)
    failure = pool.run(refuse, case, world_size=2, expect_error=True)
    assert_every_rank_raised(failure, kind, match=message)
