"""What a context tells and refuses, alone and with others; ``test_ending`` is about how it ends."""

from __future__ import annotations

import copy
import pickle
import random
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardinv import DisagreementError, DistributedContext, Ledger
from tests.context.test_environment import TORCHRUN
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.harness.worker import is_launcher_variable


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell: neither a launcher's variables nor our own."""
    import os

    for name in list(os.environ):
        if is_launcher_variable(name) or name.startswith("SHARDINV_"):
            monkeypatch.delenv(name)


# -- one process ----------------------------------------------------------------------------------


def test_single_process_makes_no_group() -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        assert (ctx.rank, ctx.world_size, ctx.local_rank) == (0, 1, 0)
        assert ctx.device == torch.device("cpu")
        assert ctx.is_main
        assert not ctx.use_dist
        assert ctx.backend is None
        assert ctx.get_backend() is None
        assert ctx.local_indices(3) == [0, 1, 2]
        assert not dist.is_initialized()
        assert isinstance(ctx.ledger, Ledger)
    assert not dist.is_initialized()


def test_single_process_talks_to_itself() -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        x = torch.arange(3.0)
        ctx.barrier()
        for op in (dist.ReduceOp.SUM, "mean", "max", "min"):
            assert ctx.all_reduce(x, op) is x
        assert ctx.broadcast(x) is x
        assert ctx.all_gather(x).tolist() == [[0.0, 1.0, 2.0]]
        assert ctx.broadcast_object({"a": 1}) == {"a": 1}
        gathered: list[Any] = [None]
        ctx.all_gather_object(gathered, "me")
        assert gathered == ["me"]
        ctx.check_same("a number", 1, "")
        assert ctx.ledger.calls == 0
        assert x.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backend": "mpi"}, "backend must be 'nccl', 'gloo' or None, got 'mpi'"),
        ({"device_mode": "tpu"}, "device_mode must be 'cpu', 'gpu' or None, got 'tpu'"),
        ({"device_mode": "cuda"}, "device_mode must be"),
        ({"seed": -1}, "seed must be a whole number of at least 0 or None, got -1"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": float("inf")}, "timeout must be a number of seconds above 0, got inf"),
        ({"timeout": timedelta(seconds=-1)}, "timeout must be a number of seconds above 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DistributedContext(**options)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="patience"):
        DistributedContext(patience=3)  # type: ignore[call-arg]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(RuntimeError, match="torch sees no GPU"),
        DistributedContext(device_mode="gpu"),
    ):
        pass
    for name, value in (TORCHRUN | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="'nccl' needs a GPU"), DistributedContext("nccl"):
        pass
    assert not dist.is_initialized()


def test_timeout_and_debug_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DistributedContext().timeout == timedelta(seconds=300)
    assert not DistributedContext().debug
    monkeypatch.setenv("SHARDINV_TIMEOUT", "2.5")
    monkeypatch.setenv("SHARDINV_DEBUG", "1")
    assert DistributedContext().timeout == timedelta(seconds=2.5)
    assert DistributedContext(timeout=7).timeout == timedelta(seconds=7)
    assert DistributedContext().debug
    assert not DistributedContext(debug=False).debug
    monkeypatch.setenv("SHARDINV_DEBUG", "0")
    assert not DistributedContext().debug
    for broken in ("soon", "-3", "", "nan"):
        monkeypatch.setenv("SHARDINV_TIMEOUT", broken)
        with pytest.raises(ValueError, match="SHARDINV_TIMEOUT"):
            DistributedContext()


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_seed_is_for_torch_numpy_and_python() -> None:
    with DistributedContext(seed=3, device_mode="cpu"):
        first = draws()
    with DistributedContext(seed=3, device_mode="cpu"):
        assert draws() == first
    with DistributedContext(seed=4, device_mode="cpu"):
        other = draws()
    assert all(a != b for a, b in zip(first, other, strict=True))
    torch.manual_seed(11)
    with DistributedContext(device_mode="cpu"):
        drawn = torch.rand(())
    torch.manual_seed(11)
    assert drawn == torch.rand(()), "no seed was given, but the generator was changed"


def test_deterministic_asks_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with DistributedContext(device_mode="cpu"):
        assert torch.backends.cudnn.benchmark
    with DistributedContext(device_mode="cpu", deterministic=True):
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark


def test_copies_are_the_context_itself_and_pickles_are_refused() -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        holder = {"ctx": ctx, "weights": [1.0]}
        twin = copy.deepcopy(holder)
        assert twin["ctx"] is ctx
        assert twin["weights"] is not holder["weights"]
        assert copy.copy(ctx) is ctx
        assert copy.deepcopy(ctx.comm) is ctx.comm
        for way in (pickle.dumps, copy_by_torch):
            with pytest.raises(TypeError, match=r"state_dict\(\)"):
                way(holder)


def copy_by_torch(thing: object) -> None:
    import io

    torch.save(thing, io.BytesIO())


def test_repr_says_who_and_where() -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        assert repr(ctx) == ("DistributedContext(rank=0, world_size=1, device='cpu', backend=None)")


# -- several processes ----------------------------------------------------------------------------


def tell(ctx: DistributedContext) -> dict[str, Any]:
    return {
        "rank": ctx.rank,
        "size": ctx.world_size,
        "local": ctx.local_rank,
        "main": ctx.is_main,
        "dist": ctx.use_dist,
        "backend": ctx.backend,
        "device": str(ctx.device),
        "items": ctx.local_indices(5),
        "text": repr(ctx),
    }


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_knows_its_place(pool: WorkerPool, world_size: int) -> None:
    told = pool.run(tell, world_size=world_size)
    backend = None if world_size == 1 else "gloo"
    for rank, mine in enumerate(told):
        assert (mine["rank"], mine["size"], mine["local"]) == (rank, world_size, rank)
        assert mine["main"] == (rank == 0)
        assert mine["dist"] == (world_size > 1)
        assert (mine["backend"], mine["device"]) == (backend, "cpu")
        assert f"rank={rank}, world_size={world_size}" in mine["text"]
    assert sorted(item for mine in told for item in mine["items"]) == [0, 1, 2, 3, 4]
    sizes = [len(mine["items"]) for mine in told]
    assert max(sizes) - min(sizes) <= 1


def check_messages(ctx: DistributedContext) -> None:
    size, rank = ctx.world_size, ctx.rank
    ranks = torch.arange(size, dtype=torch.float64)
    for op, expected in [
        (dist.ReduceOp.SUM, ranks.sum()),
        (dist.ReduceOp.AVG, ranks.mean()),
        (dist.ReduceOp.MAX, ranks.max()),
        (dist.ReduceOp.MIN, ranks.min()),
        ("sum", ranks.sum()),
        ("mean", ranks.mean()),
    ]:
        x = torch.full((3,), float(rank), dtype=torch.float64)
        assert ctx.all_reduce(x, op) is x
        assert torch.equal(x, expected.expand(3))
        strided = torch.full((4, 2), float(rank), dtype=torch.float64)
        ctx.all_reduce(strided[:, 0], op)  # in place also where it is not contiguous
        assert torch.equal(strided[:, 0], expected.expand(4))
        assert torch.equal(strided[:, 1], torch.full((4,), float(rank), dtype=torch.float64))
    with pytest.raises(ValueError, match="all_reduce knows"):
        ctx.all_reduce(torch.ones(1), dist.ReduceOp.PRODUCT)
    leaf = torch.full((2,), float(rank), requires_grad=True)
    ctx.all_reduce(leaf)  # a message for the user's own script: not part of the graph
    assert leaf.is_leaf
    assert leaf.tolist() == [float(ranks.sum())] * 2
    for source in range(size):
        x = torch.full((2, 3), rank).t()
        assert ctx.broadcast(x, source) is x
        assert torch.equal(x, torch.full((3, 2), source))
        assert ctx.broadcast_object(f"from {rank}", source) == f"from {source}"
        things: list[Any] = [rank, {"rank": rank}]
        ctx.broadcast_object_list(things, source)
        assert things == [source, {"rank": source}]
    rows = ctx.all_gather(torch.tensor([rank, -rank]))
    assert rows.tolist() == [[r, -r] for r in range(size)]
    gathered: list[Any] = [None] * size
    ctx.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": r} for r in range(size)]
    ctx.check_same("a number", 3, "")
    ctx.barrier()
    assert (ctx.ledger.calls > 0) == (size > 1)
    ctx.ledger.reset()
    assert ctx.ledger.calls == 0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_messages_for_a_script(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_messages, world_size=world_size)


def differ(ctx: DistributedContext) -> None:
    ctx.check_same("the number of iterations", 10 + ctx.rank, "Give every rank the same options.")


def test_difference_is_told_on_every_rank(pool: WorkerPool) -> None:
    outcomes = pool.run(differ, world_size=3, expect_error=True)
    assert_every_rank_raised(
        outcomes, DisagreementError, "rank 0: 10; rank 1: 11; rank 2: 12. Give every rank"
    )


def draw_with_seed(ctx: DistributedContext, seed_offset: bool) -> tuple[float, float, float]:
    with DistributedContext(seed=5, seed_offset=seed_offset, device_mode="cpu", cleanup=False):
        return draws()


def test_seeds_are_offset_by_rank_or_the_same(pool: WorkerPool) -> None:
    same = pool.run(draw_with_seed, False, world_size=3)
    offset = pool.run(draw_with_seed, True, world_size=3)
    assert len(set(same)) == 1
    assert len(set(offset)) == 3
    assert offset[0] == same[0]


def check_copy_works(ctx: DistributedContext) -> float:
    twin = copy.deepcopy({"ctx": ctx})["ctx"]
    return float(twin.all_reduce(torch.ones(())))


def test_copy_reaches_the_same_ranks(pool: WorkerPool) -> None:
    assert pool.run(check_copy_works, world_size=3) == [3.0] * 3


def check_some_ranks_only(ctx: DistributedContext) -> None:
    """Ranks 1 and 3 of four work together, then all four again."""
    members = [1, 3]
    group = dist.new_group(members)
    if ctx.rank in members:
        with DistributedContext(process_group=group, device_mode="cpu", cleanup=False) as pair:
            assert (pair.rank, pair.world_size) == (members.index(ctx.rank), 2)
            assert pair.backend == "gloo"
            x = torch.full((20_000,), float(ctx.rank))
            assert pair.all_reduce(x.clone())[0] == 4.0  # sends of the package's own: large
            assert pair.all_reduce(x[:2].clone())[0] == 4.0
            assert pair.broadcast(x.clone(), 1)[0] == 3.0
            assert pair.all_gather(x[:1]).flatten().tolist() == [1.0, 3.0]
            assert pair.broadcast_object(ctx.rank, 1) == 3
            pair.barrier()
    assert dist.is_initialized()
    assert ctx.all_reduce(torch.ones(())) == 4.0


def test_context_on_a_group_of_some_ranks(pool: WorkerPool) -> None:
    pool.run(check_some_ranks_only, world_size=4)


def check_one_after_the_other(ctx: DistributedContext) -> None:
    for number in range(3):
        with DistributedContext(device_mode="cpu") as again:  # finds the group that is there
            assert (again.rank, again.world_size) == (ctx.rank, ctx.world_size)
            assert again.broadcast_object(number + ctx.rank) == number
            again.all_reduce(torch.ones(3))
            assert again.ledger.calls == 1, "each context has a ledger of its own"
    assert dist.is_initialized(), "a group that the context did not make is not its to end"
    assert ctx.all_reduce(torch.ones(())) == ctx.world_size


@pytest.mark.parametrize("world_size", [2, 3])
def test_contexts_one_after_the_other(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_one_after_the_other, world_size=world_size)
