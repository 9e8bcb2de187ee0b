"""Checkpoints that are missing, half there, or of something else; ranks that don't agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from shardinv.checkpoint import CheckpointError
from shardinv.context import DistributedContext
from shardinv.exchange import DisagreementError
from tests.harness import WorkerPool, assert_every_rank_raised


def _save(ctx: Any, folder: str, count: int = 1, keep: int | None = 2) -> None:
    for number in range(1, count + 1):
        ctx.save(folder, ctx.full((1, 1, 6, 5), float(number)), {"iteration": number}, keep=keep)


def _latest(ctx: Any, folder: str) -> tuple[str | None, int | None]:
    path = ctx.latest(folder)
    return (None, None) if path is None else (path.name, ctx.load(folder).state["iteration"])


def test_the_newest_stay(pool: WorkerPool, tmp_path: Path) -> None:
    assert pool.run(_latest, str(tmp_path / "none")) == [(None, None)] * 2
    pool.run(_save, str(tmp_path), 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000003",
        "checkpoint-000004",
    ]
    pool.run(_save, str(tmp_path), 3, None)
    assert len(list(tmp_path.iterdir())) == 5
    # Numbers go on, so the newest is the one written last, whoever wrote what was there.
    assert pool.run(_latest, str(tmp_path)) == [("checkpoint-000007", 3)] * 2
    pool.run(_save, str(tmp_path), 1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000008"]


def _spoil(path: Path, how: str) -> None:
    data = path / "__0_0.distcp"
    manifest = path / "shardinv.json"
    if how == "no manifest":
        manifest.unlink()
    elif how == "no data":
        data.unlink()
    elif how == "cut off":
        data.write_bytes(data.read_bytes()[:-100])
    elif how == "half a manifest":
        manifest.write_text(manifest.read_text()[:50])
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))


SPOILED = {
    "no manifest": "was not written to its end: it has no shardinv.json",
    "no data": "is not whole: __0_0.distcp is missing",
    "cut off": r"is not whole: __0_0.distcp has \d+ bytes, \d+ were written",
    "half a manifest": "can't be read",
    "other format": r"has format 2 \(of shardinv .*\), this version reads format 1",
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_not_whole_is_passed_over(how: str, tmp_path: Path) -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        _save(ctx, str(tmp_path), 2)
        _spoil(tmp_path / "checkpoint-000002", how)
        assert _latest(ctx, str(tmp_path)) == ("checkpoint-000001", 1)
        with pytest.raises(CheckpointError, match=SPOILED[how]):
            ctx.load(tmp_path / "checkpoint-000002")
        shutil.rmtree(tmp_path / "checkpoint-000001")
        with pytest.raises(CheckpointError, match=f"no readable checkpoint.*{SPOILED[how]}"):
            ctx.load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        with pytest.raises(CheckpointError, match="there is no folder"):
            ctx.load(tmp_path / "none")
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            ctx.load(tmp_path)


def test_changed_data(tmp_path: Path) -> None:
    """Sizes are right, the content is not."""
    with DistributedContext(device_mode="cpu") as ctx:
        _save(ctx, str(tmp_path))
        data = tmp_path / "checkpoint-000001" / "__0_0.distcp"
        data.write_bytes(bytes(data.stat().st_size))
        with pytest.raises(CheckpointError, match=r"reading .* failed: rank 0: "):
            ctx.load(tmp_path)


def test_bad_arguments(tmp_path: Path) -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        _save(ctx, str(tmp_path))
        with pytest.raises(CheckpointError, match=r"holds as x \(1, 1, 6, 5\); like has shape"):
            ctx.load(tmp_path, like=torch.zeros(1, 1, 6, 6))
        with pytest.raises(ValueError, match="layout='replicated' was asked for, but mesh is for"):
            ctx.load(tmp_path, layout="replicated", mesh=1)
        with pytest.raises(ValueError, match="layout must be"):
            ctx.load(tmp_path, layout="whole")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="keep must be at least 1"):
            ctx.save(tmp_path, keep=0)
        for value, message in (
            ({"a": [1, object()]}, r"state\['a'\]\[1\] is a builtins.object, which can't be saved"),
            ({(1, 2): 3}, r"state has the key \(1, 2\)"),
            (torch.eye(3).to_sparse(), "state is sparse"),
        ):
            with pytest.raises(TypeError, match=message):
                ctx.save(tmp_path, state=value)


def _disagree(ctx: Any, folder: str, case: str) -> None:
    mine = ctx.rank == 1
    x, state = ctx.zeros((1, 1, 6, 5)), {"iteration": 1, "z": torch.zeros(2)}
    if case == "number":
        state["iteration"] = 1 + mine
    elif case == "shape":
        state["z"] = torch.zeros(2 + mine)
    elif case == "missing" and mine:
        del state["z"]
    elif case == "layout" and mine:
        x = torch.zeros(1, 1, 6, 5)
    elif case == "order" and mine:
        state = dict(reversed(state.items()))
    elif case == "folder" and mine:
        folder += "/other"
    elif case == "type" and mine:
        state["z"] = object()
    ctx.save(folder, x, state)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("number", r"saved as state\['iteration'\]: rank 0: 1; rank 1: 2"),
        ("shape", r"saved as state\['z'\]: rank 0: a tensor \(2,\) float32; rank 1: a tensor \(3"),
        ("missing", r"saved as state\['z'\]: rank 0: a tensor \(2,\) float32; rank 1: nothing"),
        ("layout", r"saved as x: rank 0: a tensor .* sharded on a mesh of 2 × 1; rank 1: a tensor"),
        ("order", "disagree on the order"),
        ("folder", "save to different folders"),
    ],
    ids=lambda value: value.split()[0] if " " not in value else "",
)
def test_ranks_disagree(pool: WorkerPool, tmp_path: Path, case: str, message: str) -> None:
    results = pool.run(_disagree, str(tmp_path), case, expect_error=True)
    assert_every_rank_raised(results, DisagreementError, match=message)
    assert not list(tmp_path.iterdir())


def test_one_rank_has_what_cannot_be_saved(pool: WorkerPool, tmp_path: Path) -> None:
    first, second = pool.run(_disagree, str(tmp_path), "type", expect_error=True)
    assert first.type_name.endswith("RankError")
    assert "rank 1 can't save what it was given: state['z'] is a builtins.object" in first.message
    assert second.type_name.endswith("TypeError")


def _disk_full(ctx: Any, folder: str) -> None:
    from shardinv.checkpoint.planners import PartsSaver

    _save(ctx, folder)
    resolve = PartsSaver.resolve_data

    def fail(self: Any, item: Any) -> Any:
        raise OSError(28, "No space left on device")

    if ctx.rank == 1:
        PartsSaver.resolve_data = fail  # type: ignore[method-assign]
    try:
        _save(ctx, folder)
    finally:
        PartsSaver.resolve_data = resolve  # type: ignore[method-assign]


def test_a_rank_that_cannot_write(pool: WorkerPool, tmp_path: Path) -> None:
    results = pool.run(_disk_full, str(tmp_path), world_size=3, expect_error=True)
    assert_every_rank_raised(results, CheckpointError, match="rank 1: OSError.28, 'No space left")
    # What was begun is not taken for a checkpoint, and is gone after the next one.
    assert len(list(tmp_path.iterdir())) == 2
    assert pool.run(_latest, str(tmp_path)) == [("checkpoint-000001", 1)] * 2
    pool.run(_save, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000001",
        "checkpoint-000002",
    ]


def test_a_folder_that_is_a_file(pool: WorkerPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    results = pool.run(_save, str(tmp_path / "file"), expect_error=True)
    assert_every_rank_raised(results, CheckpointError, match="failed on rank 0: .*File exists")
