"""A second writer, and a folder that is not shared, are found on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardinv import DistributedContext
from shardinv.io import write_json
from shardinv.study.checks.finding import Finding
from shardinv.study.checks.writing import shared_folder, write_result, writers
from tests.harness import WorkerPool


def write_on_all(ctx: DistributedContext, folder: Path) -> None:
    write_json(folder / "result.json", {"rank": ctx.rank})


def write_nothing(ctx: DistributedContext, folder: Path) -> None:
    pass


def count(ctx: DistributedContext, folder: Path, how: str) -> tuple[Finding, list[int]]:
    write = {"result": write_result, "all": write_on_all, "nothing": write_nothing}[how]
    return writers(ctx, folder, write)


def share(ctx: DistributedContext, folders: list[Path]) -> Finding:
    return shared_folder(ctx, folders[ctx.rank])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rank_0_writes(pool: WorkerPool, tmp_path: Path, ranks: int) -> None:
    for finding, found in pool.run(count, tmp_path, "result", world_size=ranks):
        assert found == [0]
        assert finding.status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer(pool: WorkerPool, tmp_path: Path) -> None:
    for finding, found in pool.run(count, tmp_path, "all", world_size=3):
        assert found == [0, 1, 2]
        assert finding.status == "failed"
        assert "3 ranks write the same file: ranks 0, 1, 2" in finding.message
        assert "if ctx.is_main" in finding.remedy


def test_no_writer(pool: WorkerPool, tmp_path: Path) -> None:
    (finding, _), _ = pool.run(count, tmp_path, "nothing")
    assert finding.status == "failed"


def test_a_shared_folder(pool: WorkerPool, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for finding in pool.run(share, [folder, folder]):
        assert finding.status == "ok", finding.message
        assert "the same for all 2 ranks" in finding.message
    assert list(folder.iterdir()) == []


def test_a_folder_of_each_host(pool: WorkerPool, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]
    for finding in pool.run(share, folders, world_size=3):
        assert finding.status == "failed"
        assert "not there for rank 2" in finding.message
        assert "all hosts share" in finding.remedy


def test_a_folder_that_is_a_file(pool: WorkerPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for finding in pool.run(share, [tmp_path / "file"] * 2):
        assert finding.status == "failed"
        assert "rank 0 can't write" in finding.message
