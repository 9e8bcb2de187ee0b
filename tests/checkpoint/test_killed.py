"""A run that is killed and goes on ends where an uninterrupted one does. Real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.context.programs import program
from tests.harness import LaunchResult, WorkerPool, launch_script

ITERATIONS, KILLED_AT = 8, 5
SHAPE = (1, 2, 11, 7)

#: Also run on the pool: `ctx`, `folder` and `hook` are given. Draws random numbers, which are the
#: same on all ranks.
LOOP = f"""
def run(ctx, folder, hook=lambda k, ctx: None):
    import torch
    rows = torch.arange({SHAPE[2]}.0, dtype=torch.float64)
    x = ctx.from_function({SHAPE}, lambda box: (
        rows[box.slices()[0]][:, None] / 7).expand(1, 2, *box.shape).clone())
    z, k = x * 0, 0
    torch.manual_seed(5)
    if ctx.latest(folder) is not None:
        x, state = ctx.load(folder)
        z, k = state["z"], state["k"]
    first = k
    while k < {ITERATIONS}:
        k += 1
        z = 0.9 * z + torch.rand((), dtype=torch.float64) * torch.sin(x)
        x = x - 0.3 * z / torch.linalg.vector_norm(x)
        hook(k, ctx)
        ctx.save(folder, x, {{"z": z, "k": k}})
    return first, x
"""

PROGRAM = f"""
{LOOP}
from shardinv.checkpoint import planners
where, folder = WHERE, FOLDER
resolve = planners.PartsSaver.resolve_data

def die():
    if not os.path.exists(folder + ".died"):
        open(folder + ".died", "w").close()
        say("failing")
        os.kill(os.getpid(), signal.SIGKILL)

def hook(k, ctx):
    if k == {KILLED_AT} and ctx.rank == 1:
        if where == "iteration":
            die()
        def resolve_half(self, item):
            if item.index.fqn != "x":
                die()
            return resolve(self, item)
        planners.PartsSaver.resolve_data = resolve_half

with DistributedContext(device_mode="cpu") as ctx:
    first, x = run(ctx, folder, hook)
    say(f"rank {{ctx.rank}} began at {{first}},")
"""


def _program(where: str, folder: Path) -> str:
    return program(PROGRAM.replace("WHERE", repr(where)).replace("FOLDER", repr(str(folder))))


def _undistributed() -> Tensor:
    x = (torch.arange(float(SHAPE[2]), dtype=torch.float64) / 7)[:, None].expand(SHAPE)
    z = x * 0
    torch.manual_seed(5)
    for _ in range(ITERATIONS):
        z = 0.9 * z + torch.rand((), dtype=torch.float64) * torch.sin(x)
        x = x - 0.3 * z / torch.linalg.vector_norm(x)
    return x


def _resume(ctx: Any, folder: str) -> tuple[int, Tensor]:
    space: dict[str, Any] = {}
    exec(LOOP, space)
    first, x = space["run"](ctx, folder)
    return first, ctx.gather(x)


def _assert_whole(pool: WorkerPool, folder: Path, first: int, world_size: int) -> None:
    for began, x in pool.run(_resume, str(folder), world_size=world_size):
        assert began == first
        torch.testing.assert_close(x, _undistributed(), rtol=1e-13, atol=0)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LaunchResult, Path]]:
    """Both runs at once: most of each is waiting for the rank that was killed."""
    folders = {where: tmp_path_factory.mktemp(where) for where in ("iteration", "write")}

    def run(where: str) -> LaunchResult:
        source = _program(where, folders[where] / "checkpoints")
        arguments = [str(folders[where]), "3"]
        return launch_script(source, 3, launcher="spawn", arguments=arguments, timeout=90)

    with ThreadPoolExecutor(2) as executor:
        runs = list(executor.map(run, folders))
    return {where: (run, folder) for run, (where, folder) in zip(runs, folders.items())}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["iteration", "write"])
def test_killed_without_a_supervisor(
    pool: WorkerPool, killed: dict[str, tuple[LaunchResult, Path]], where: str
) -> None:
    run, folder = killed[where]
    errors = [(folder / f"{rank}.err").read_text() for rank in range(3)]
    assert run.returncodes[1] == -9, errors
    for rank in (0, 2):
        assert run.returncodes[rank] not in (0, -9), errors
        assert "RankError" in errors[rank] or "ends because" in errors[rank], errors
    (died,) = (folder / "1.out").read_text().splitlines()
    assert max(run.ended_at) - float(died.split()[-1]) < 20, errors
    # With another number of ranks, from the last iteration that was written whole.
    _assert_whole(pool, folder / "checkpoints", KILLED_AT - 1, 2)


@pytest.mark.slow
def test_restarted_by_torchrun(pool: WorkerPool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    source = _program("write", folder)
    launch_script(
        source,
        2,
        launcher="torchrun",
        arguments=[str(tmp_path), "2"],
        timeout=120,
        env={"PET_MAX_RESTARTS": "1"},
    ).check()
    said = [(tmp_path / f"{rank}.out").read_text() for rank in range(2)]
    assert "failing" in said[1]
    for rank in range(2):
        assert f"rank {rank} began at {KILLED_AT - 1}," in said[rank]
    _assert_whole(pool, folder, ITERATIONS, 3)
