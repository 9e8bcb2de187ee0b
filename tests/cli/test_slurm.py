"""``shardinv study run --slurm``: real jobs on a cluster of one node that is started here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shardinv.cli.main import app
from tests.harness.slurm import slurm_cluster, why_no_slurm

pytestmark = pytest.mark.slow
runner = CliRunner()
COMMON = {"size": 32, "frames": 2, "tile": 16, "overlap": 8, "iterations": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster() as conf:
        yield conf


@pytest.fixture
def slurm(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster))


def _words(folder: Path, *grids: dict[str, Any], **launch: Any) -> list[str]:
    path = folder / "study.yaml"
    study = {"name": "x", "common": COMMON, "grids": list(grids), "launch": {"time": 5, **launch}}
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    return ["study", "run", str(path), "--output", str(folder / "out")]


@pytest.mark.usefixtures("slurm")
def test_points_are_jobs_and_one_that_fails_is_recorded(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.png")
    words = [*_words(tmp_path, {"ranks": 2}, {"photograph": missing}), "--slurm"]
    first = runner.invoke(app, words)
    assert first.exit_code == 1, first.output
    assert "2 points, 0 measured already" in first.output
    assert "1 of 2 points failed" in first.output

    points = tmp_path / "out" / "points"
    (good,) = points.glob("*.json")
    record = json.loads(good.read_text(encoding="utf-8"))
    assert record["point"]["ranks"] == len(record["iterations"][0]) == 2
    (bad,) = points.glob("*.error.txt")
    error = bad.read_text(encoding="utf-8")
    assert error.startswith("rank 0: ImageError: there is no file")
    assert "Traceback" in error
    assert "_0_log.out" in error
    (jobs,) = (tmp_path / "out" / "jobs").glob(good.stem)
    assert len(list(jobs.glob("*_log.out"))) == 2

    date = good.stat().st_mtime_ns
    again = runner.invoke(app, [*_words(tmp_path, {"ranks": 2}), "--slurm"])
    assert again.exit_code == 0, again.output
    assert "1 points, 1 measured already" in again.output
    assert good.stat().st_mtime_ns == date
    assert len(list(jobs.glob("*_submission.sh"))) == 1


@pytest.mark.usefixtures("slurm")
def test_a_cancelled_job_is_recorded_and_ctrl_c_cancels_the_rest(tmp_path: Path) -> None:
    words = _words(tmp_path, {"iterations": [10**6, 10**6 + 1]}, how="slurm")
    points = tmp_path / "out" / "points"

    def disturb() -> None:
        try:
            _until(lambda: len(_jobs("RUNNING")) == 2)
            subprocess.run(["scancel", min(_jobs("RUNNING"))], check=True)
            _until(lambda: any(points.glob("*.error.txt")))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=disturb)
    thread.start()
    result = runner.invoke(app, words)
    thread.join()
    assert result.exit_code == 130, result.output
    assert "all jobs are cancelled" in result.output
    (error,) = points.glob("*.error.txt")
    assert "ended with CANCELLED" in error.read_text(encoding="utf-8")
    assert not list(points.glob("*.json"))
    _until(lambda: not _jobs("all", but="CANCELLED COMPLETED FAILED"))


def _jobs(state: str, but: str = "") -> list[str]:
    command = ["squeue", "--noheader", f"--states={state}", "--format=%i %T"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[0] for line in lines if line.split()[1] not in but.split()]


def _until(ready: Any, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.2)
