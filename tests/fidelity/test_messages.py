"""What a fidelity costs in the steady state: one reduction, no question, one image at a time."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from deepinv.optim import DataFidelity
from deepinv.optim.data_fidelity import L1, L2
from deepinv.physics import LinearPhysics
from deepinv.sampling import DPSDataFidelity

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.fidelity.test_sampling import Smooth
from tests.harness import WorkerPool
from tests.physics.stacks import image, linear_operators, nonlinear_operators


class CountingStore:
    """A store that counts who asks it anything."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self._store, name)


def count_messages(ctx: DistributedContext) -> dict[str, tuple[int, int, int]]:
    """Calls and bytes in the ledger, and questions to the store, of each second call."""
    store = ctx.comm.store = CountingStore(ctx.comm.store)
    found = {}
    x = image(0)
    for kind, operators in {"linear": linear_operators(4), "bent": nonlinear_operators(4)}.items():
        ours = distribute(operators, ctx)
        full = ours.A(x)
        lists = {"full": full, "owned": ours.A(x, gather=False), "by hand": ours.own(full)}
        for source in (L2(), L1(), DataFidelity(d=lambda u, y: (u - y).pow(4).flatten(1).sum(1))):
            fidelity = distribute(source, ctx)
            for name, y in lists.items():
                for method in ("grad", "fn"):
                    getattr(fidelity, method)(x, y, ours)
                    ctx.ledger.reset()
                    before = store.calls
                    getattr(fidelity, method)(x.clone(), y, ours)
                    case = f"{method} of {type(source).__name__}, {kind}, {name}"
                    found[case] = ctx.ledger.calls, ctx.ledger.bytes_sent, store.calls - before
    return found


@pytest.mark.parametrize("world_size", (2, 3))
def test_one_reduction_and_no_question(pool: WorkerPool, world_size: int) -> None:
    for found in pool.run(count_messages, world_size=world_size):
        assert len(found) == 36
        for case, (calls, sent, questions) in found.items():
            values = image(0).numel() if case.startswith("grad") else image(0).shape[0]
            assert calls == 1, case
            assert sent == 2 * (world_size - 1) * values * 8 // world_size, case
            assert questions == 0, case


def other_messages(ctx: DistributedContext) -> dict[str, Any]:
    """Gradients of fidelities, guidance, and the steps of solvers."""
    store = ctx.comm.store = CountingStore(ctx.comm.store)
    ours = distribute(linear_operators(4), ctx)
    x = image(0)
    y = ours.A(x)
    single = [t.float() for t in y.x]
    dps = distribute(DPSDataFidelity(Smooth()), ctx)
    fidelity = distribute(L2(), ctx)

    def backward() -> None:
        leaf = x.clone().requires_grad_()
        fidelity.fn(leaf, y, ours).sum().backward()

    def descend() -> None:
        step = x
        for _ in range(5):
            step = step - 0.1 * fidelity.grad(step, y, ours)

    def dps_gradient() -> None:
        small = distribute_single()
        dps.grad(x.float(), single, small, 0.3)

    made = []

    def distribute_single() -> Any:
        if not made:
            made.append(distribute(linear_operators(4), ctx, dtype=torch.float32))
        return made[0]

    found = {}
    for name, call in {
        "backward": backward,
        "five steps": descend,
        "guidance": dps_gradient,
        "normal operator": lambda: ours.A_adjoint_A(x),
    }.items():
        call()
        ctx.ledger.reset()
        before = store.calls
        call()
        table = [(row["block"], row["operation"], row["calls"]) for row in ctx.ledger.table()]
        found[name] = (sorted(table), store.calls - before)
    return found


def test_other_calls(pool: WorkerPool) -> None:
    for found in pool.run(other_messages, world_size=2):
        assert {name: questions for name, (_, questions) in found.items()} == dict.fromkeys(
            found, 0
        )
        assert found["backward"][0] == [
            ("agreement (backward)", "all_reduce", 1),
            ("fidelity", "all_reduce", 1),
            ("fidelity (backward)", "all_reduce", 1),
        ]
        assert found["five steps"][0] == [("fidelity", "all_reduce", 5)]
        assert found["guidance"][0] == [
            ("agreement (backward)", "all_reduce", 1),
            ("fidelity", "all_reduce", 1),
            ("fidelity (backward)", "all_reduce", 1),
        ]
        assert found["normal operator"][0] == [("physics", "all_reduce", 1)]


def large_image(ctx: DistributedContext) -> tuple[int, int, int]:
    """An image too large for gloo's own reduction: still one call of the same number of bytes."""
    started = []
    original = dist.batch_isend_irecv
    x = torch.randn(1, 1, 127, 131, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    identity = LinearPhysics(A_adjoint=lambda y, **_: y)
    ours = distribute([identity] * 4, ctx)
    fidelity = distribute(L2(), ctx)
    y = [torch.zeros_like(x)] * 4
    fidelity.grad(x, y, ours)
    ctx.ledger.reset()
    try:
        dist.batch_isend_irecv = lambda works: started.append(len(works)) or original(works)
        result = fidelity.grad(x, y, ours)
    finally:
        dist.batch_isend_irecv = original
    torch.testing.assert_close(result, 4 * x, rtol=1e-14, atol=0)
    return ctx.ledger.calls, ctx.ledger.bytes_sent, sum(started)


def test_a_large_image(pool: WorkerPool) -> None:
    nbytes = 127 * 131 * 8
    for calls, sent, messages in pool.run(large_image, world_size=3):
        assert (calls, sent) == (1, 4 * nbytes // 3)
        assert messages == 8  # two rounds of two sends and two receives


class Witness(LinearPhysics):
    """The identity, which remembers how many of the images that it has made are still held."""

    alive: list[weakref.ref[torch.Tensor]]
    most: int

    @classmethod
    def begin(cls) -> None:
        cls.alive, cls.most = [], 0

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return x.clone()

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        image = y.clone()
        Witness.alive.append(weakref.ref(image))
        Witness.most = max(Witness.most, sum(ref() is not None for ref in Witness.alive))
        return image

    def A_adjoint_A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.A_adjoint(self.A(x))


def images_alive(ctx: DistributedContext) -> dict[str, int]:
    ours = distribute([Witness() for _ in range(16)], ctx)
    fidelity = distribute(L2(), ctx)
    x = image(0)
    y = ours.A(x, gather=False)
    found = {}
    for name, call in {
        "grad": lambda: fidelity.grad(x, y, ours),
        "A_adjoint": lambda: ours.A_adjoint(y),
        "A_adjoint_A": lambda: ours.A_adjoint_A(x),
    }.items():
        Witness.begin()
        result = call()
        assert len(Witness.alive) == len(ours.ownership.mine)
        torch.testing.assert_close(result, (0 if name == "grad" else 16) * x)
        found[name] = Witness.most
    return found


@pytest.mark.parametrize("world_size", (1, 2))
def test_contributions_are_added_as_they_come(pool: WorkerPool, world_size: int) -> None:
    for found in pool.run(images_alive, world_size=world_size):
        assert all(most <= 2 for most in found.values()), found  # the last one, and the new one
