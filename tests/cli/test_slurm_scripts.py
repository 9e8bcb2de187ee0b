"""The jobs of a study without a cluster: scripts of a dry run, order, refusal, states."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shardinv.cli.main import app
from shardinv.cli.study.launch.executor import FORGOTTEN, QueueWatcher
from shardinv.cli.study.launch.slurm import SlurmLauncher
from shardinv.cli.study.results import Results
from shardinv.study.plan.grids import Study
from shardinv.study.plan.launch import LaunchSettings

runner = CliRunner()


def _words(folder: Path, grid: dict[str, Any], launch: dict[str, Any]) -> list[str]:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"grids": [grid], "launch": launch}), encoding="utf-8")
    return ["study", "run", str(path), "--output", str(folder / "out")]


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("launch", "line"),
    [
        ({"partition": "gpu"}, "#SBATCH --partition=gpu"),
        ({"account": "abc@v100"}, "#SBATCH --account=abc@v100"),
        ({"qos": "short"}, "#SBATCH --qos=short"),
        ({"constraint": "v100-32g"}, "#SBATCH --constraint=v100-32g"),
        ({"time": 7}, "#SBATCH --time=7"),
        ({"nodes": 2}, "#SBATCH --nodes=2"),
        ({"nodes": 2}, "#SBATCH --ntasks-per-node=4"),
        ({"ranks_per_node": 2}, "#SBATCH --nodes=4"),
        ({"gpus_per_node": 4}, "#SBATCH --gpus-per-node=4"),
        ({"gpus_per_node": 4}, "#SBATCH --ntasks-per-node=4"),
        ({"cpus_per_task": 10}, "#SBATCH --cpus-per-task=10"),
        ({"memory": "64G"}, "#SBATCH --mem=64G"),
        ({"sbatch": {"exclusive": True}}, "#SBATCH --exclusive"),
        ({"sbatch": {"mail_user": "a@b.org"}}, "#SBATCH --mail-user=a@b.org"),
        ({"setup": ["module load cuda/12"]}, "module load cuda/12"),
        ({}, "#SBATCH --no-requeue"),
    ],
)
def test_settings_are_lines_of_the_script(
    tmp_path: Path, no_slurm: Path, launch: dict[str, Any], line: str
) -> None:
    grid = {"ranks": 8, "device": "gpu" if "gpus_per_node" in launch else "cpu"}
    result = runner.invoke(app, [*_words(tmp_path, grid, launch), "--slurm", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert line in result.output.splitlines()
    (script,) = (tmp_path / "out" / "jobs").glob("*/job.sh")
    text = script.read_text(encoding="utf-8")
    assert text in result.output
    bash = subprocess.run(["/bin/bash", "-n", str(script)], capture_output=True, text=True)
    assert bash.returncode == 0, bash.stderr
    assert not (tmp_path / "out" / "points").exists()


def test_srun_starts_a_task_for_each_rank(tmp_path: Path, no_slurm: Path) -> None:
    launch = {"srun": ["--cpu-bind=cores"], "cpus_per_task": 3, "python": "wrap python3"}
    result = runner.invoke(
        app, [*_words(tmp_path, {"ranks": [1, 2]}, {"how": "slurm", **launch}), "--dry-run"]
    )
    assert result.exit_code == 0, result.output
    commands = [line for line in result.output.splitlines() if line.startswith("srun ")]
    assert len(commands) == 2
    for command in commands:
        # Since 22.05 srun does not take it from sbatch.
        assert "--cpus-per-task=3 --cpu-bind=cores wrap python3 -u -m submitit" in command
    assert "2 scripts written, nothing submitted" in result.output


@pytest.mark.parametrize(
    ("grid", "launch", "words", "message"),
    [
        ({}, {}, ["--slurm"], "there is no SLURM here"),
        ({}, {}, ["--dry-run"], "add --slurm"),
        ({"device": "gpu"}, {}, ["--slurm", "--dry-run"], "needs launch.gpus_per_node"),
        ({}, {"partitoin": "gpu"}, ["--slurm"], "there is no launch.partitoin"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    no_slurm: Path,
    grid: dict[str, Any],
    launch: dict[str, Any],
    words: list[str],
    message: str,
) -> None:
    result = runner.invoke(app, [*_words(tmp_path, grid, launch), *words])
    assert result.exit_code == 2
    (error,) = [line for line in result.output.splitlines() if line.startswith("Error:")]
    assert message in error


def test_a_refused_job_is_recorded_and_the_next_is_tried(tmp_path: Path, no_slurm: Path) -> None:
    for name in ("sbatch", "squeue", "scancel"):
        program = no_slurm / name
        program.write_text("#!/bin/sh\necho 'invalid partition: x' >&2\nexit 1\n")
        program.chmod(0o755)
    result = runner.invoke(app, [*_words(tmp_path, {"ranks": [1, 2]}, {}), "--slurm"])
    assert result.exit_code == 1
    assert "2 of 2 points failed" in result.output
    errors = list((tmp_path / "out" / "points").glob("*.error.txt"))
    assert [error.read_text() for error in errors] == ["invalid partition: x\n"] * 2


def test_points_wait_for_their_references_and_for_room(tmp_path: Path) -> None:
    points = Study(grids=[{"ranks": 2, "size": 64, "quality": True}]).points
    *references, point = points
    assert set(references) == set(point.references.values())
    launcher = SlurmLauncher(LaunchSettings(max_jobs=2), Results(tmp_path))
    job: Any = object()
    # The two reference runs name each other: the first must not wait for the second.
    assert launcher._next(points, {}) == references[0]
    assert launcher._next(points[1:], {references[0]: job}) is None
    assert launcher._next([point], {references[1]: job}) is None
    assert launcher._next([point], {}) == point
    free = Study(grids=[{"ranks": [1, 2, 4]}]).points
    assert launcher._next(free[2:], {free[0]: job}) == free[2]
    assert launcher._next(free[2:], {free[0]: job, free[1]: job}) is None


def test_states_of_jobs_by_squeue(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = b"12|RUNNING|None\n13|PENDING|QOSMaxJobs|x\n14|TIMEOUT|TimeLimit\nsome warning\n"
    watcher = QueueWatcher()
    for job in ("12", "13", "14", "15"):
        watcher.register_job(job)
    found = watcher.read_info(listing)
    assert {job: info["State"] for job, info in found.items()} == {
        "12": "RUNNING",
        "13": "PENDING",
        "14": "TIMEOUT",
        "15": FORGOTTEN,
    }
    command = watcher._make_command()
    assert command is not None
    assert f"--user={os.getuid()}" in command
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: listing)
    assert [watcher.is_done(job) for job in ("12", "13", "14", "15")] == [False, False, True, True]
