"""``shardinv demo`` from end to end on small images, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from shardinv.io import read_image, write_image
from shardinv.problems import MultiFrame
from tests.harness.launch import LaunchResult, launch_script
from tests.harness.prefork import SHARDINV

pytestmark = pytest.mark.slow

# As the console script does.
PROGRAM = "import sys; from shardinv.cli.main import app; sys.exit(app(prog_name='shardinv'))"
FILES = {"reconstruction.png", "comparison.png", "psnr.png", "result.json"}
SMALL = ["--size", "128", "--tile", "64", "--iterations", "4", "--device", "cpu"]


def _demo(output: Path, *words: str, **options: Any) -> LaunchResult:
    arguments = ["demo", *SMALL, "--output", str(output), *words]
    return launch_script(PROGRAM, arguments=arguments, **options)


def _result(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "result.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def run(output: Path) -> LaunchResult:
    return _demo(output, "--check", fresh=True).check()


def test_writes_everything(run: LaunchResult, output: Path) -> None:
    # And nothing else: no temporary file stays behind.
    assert {file.name for file in output.iterdir()} == FILES
    image = read_image(output / "reconstruction.png")
    assert image.shape == (1, 3, 128, 128)
    for name in ("comparison.png", "psnr.png"):
        with Image.open(output / name) as figure:
            assert min(figure.size) > 500


def test_result(run: LaunchResult, output: Path) -> None:
    result = _result(output)
    assert set(result) == {"settings", "versions", "timings", "ledger", "psnr_db", "check"}
    psnr = result["psnr_db"]
    assert set(psnr) == {"bicubic", "without_denoiser", "reconstruction", "per_iteration"}
    assert psnr["reconstruction"] == psnr["per_iteration"][-1]
    assert psnr["reconstruction"] > psnr["bicubic"] + 4
    assert psnr["reconstruction"] > psnr["without_denoiser"]
    assert len(psnr["per_iteration"]) == len(result["timings"]["iterations"]) == 4
    assert result["settings"]["processes"] == 2
    assert result["settings"]["backend"] == "gloo"
    assert result["versions"]["deepinv"]


def test_equals_the_undistributed_run(run: LaunchResult, output: Path) -> None:
    check = _result(output)["check"]
    assert set(check) == {"max_psnr_difference_db", "relative_error"}
    # The halo covers all that FFDNet sees, so only rounding is left.
    assert check["max_psnr_difference_db"] < 1e-4
    assert check["relative_error"] < 1e-5


def test_sends_no_more_than_it_must(run: LaunchResult, output: Path) -> None:
    image = 3 * 128 * 128 * 4
    for rank, account in enumerate(_result(output)["ledger"]):
        assert account["rank"] == rank
        assert account["calls_per_iteration"] == 2
        # At R = 2: 2(R-1)/R images for the reduction, (R-1)/R for the gather.
        assert account["bytes_sent_per_iteration"] == image + image // 2
        assert {(row["block"], row["operation"]) for row in account["table"]} == {
            ("fidelity", "all_reduce"),
            ("denoiser", "gather"),
        }


def test_says_what_it_did(run: LaunchResult) -> None:
    out = run.stdout
    assert "2 processes with gloo on CPU" in out
    assert re.search(r"reconstructing 4/4  residual \S+  PSNR \S+ dB  \S+ s/iteration", out)
    assert re.search(r"PSNR \S+ dB: \+\S+ dB against bicubic", out)
    assert re.search(r"\S+ s an iteration; each rank sends 0\.29 MB an iteration", out)
    assert "largest difference to the undistributed run" in out
    assert run.stderr == ""


def test_joins_a_launcher_with_the_same_result(
    run: LaunchResult, output: Path, tmp_path: Path
) -> None:
    joined = _demo(tmp_path, nproc=3, launcher="spawn").check()
    # Three ranks, one voice.
    assert joined.stdout.count("against bicubic") == 1
    result = _result(tmp_path)
    assert result["settings"]["processes"] == 3
    expected = _result(output)["psnr_db"]
    assert result["psnr_db"]["per_iteration"] == pytest.approx(expected["per_iteration"], abs=1e-4)
    assert result["psnr_db"]["bicubic"] == pytest.approx(expected["bicubic"], abs=1e-6)


def test_a_grey_photograph_on_one_process(tmp_path: Path) -> None:
    photograph = tmp_path / "grey.png"
    rows, columns = torch.meshgrid(torch.arange(91.0), torch.arange(150.0), indexing="ij")
    write_image(photograph, (0.5 + 0.4 * torch.sin(rows * columns / 300))[None, None])
    output = tmp_path / "out"
    run = launch_script(
        PROGRAM,
        arguments=[
            "demo",
            "--photograph",
            str(photograph),
            "--processes",
            "1",
            "--iterations",
            "3",
            "--factor",
            "3",
            "--tile",
            "48",
            "--denoiser",
            "drunet",
            "--device",
            "cpu",
            "--output",
            str(output),
        ],
    ).check()
    result = _result(output)
    # The largest even multiple of 3 in the shorter side.
    assert result["settings"]["size"] == 90
    assert result["settings"]["backend"] is None
    assert result["ledger"][0]["bytes_sent"] == 0
    assert "check" not in result
    assert read_image(output / "reconstruction.png").shape == (1, 1, 90, 90)
    assert "1 process on CPU" in run.stdout


def test_a_failing_rank_ends_all_with_one_message(tmp_path: Path) -> None:
    # Python runs this file in every process before anything else.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import shardinv.problems\n"
        "    def fail(*args):\n"
        "        raise ArithmeticError('rank one is tired\\nand says so at length')\n"
        "    shardinv.problems.plug_and_play = fail\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    output = tmp_path / "out"
    run = _demo(output, env={"PYTHONPATH": path}, timeout=120)
    assert run.returncode == 1
    assert run.stderr.count("ArithmeticError") == 1
    assert "Error: rank 1: ArithmeticError: rank one is tired (the whole traceback" in run.stderr
    assert "Traceback" not in run.stderr
    details = (output / "error.txt").read_text()
    assert "Traceback" in details
    assert "and says so at length" in details
    assert not FILES & {file.name for file in output.iterdir()}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[LaunchResult, dict[str, Any]]:
    output = tmp_path_factory.mktemp("sharded")
    run = _demo(output, "--layout", "sharded", "--check", nproc=2, launcher="spawn").check()
    return run, _result(output)


def test_sharded_is_the_same(
    run: LaunchResult, output: Path, sharded: tuple[LaunchResult, dict[str, Any]]
) -> None:
    printed, result = sharded
    assert "image          sharded on a mesh of 2 × 1, at most 64 × 128 pixels" in printed.stdout
    assert printed.stderr == ""
    assert result["settings"]["mesh"] == [2, 1]
    assert result["check"]["max_psnr_difference_db"] < 1e-4
    assert result["check"]["relative_error"] < 1e-5
    expected, found = _result(output)["psnr_db"], result["psnr_db"]
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-4), name


def test_sharded_sends_halos_alone(sharded: tuple[LaunchResult, dict[str, Any]]) -> None:
    radius = MultiFrame().radius
    for account in sharded[1]["ledger"]:
        table = {(row["block"], row["operation"]): row["bytes_sent"] for row in account["table"]}
        assert set(table) == {("physics", "halo"), ("denoiser", "halo"), ("denoiser", "realign")}
        # One side has a neighbour. Over 4 iterations: the denoiser's halo is 24 rows, the gradient
        # needs a kernel's radius and a pixel's rounding to and fro.
        row = 4 * 3 * 128 * 4
        # Where a tile's border and a box's are the same, its result is at home already.
        assert table["denoiser", "realign"] == 0
        assert table["denoiser", "halo"] == 24 * row
        assert table["physics", "halo"] <= 2 * (radius + 2) * row


# Rank 1 kills itself in the third iteration.
KILLER = """
import os
if os.environ.get("RANK") == "1":
    import shardinv.problems, signal
    original = shardinv.problems.plug_and_play
    def fail(*args):
        for number, x in enumerate(original(*args), 1):
            if number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield x
    shardinv.problems.plug_and_play = fail
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_killed_and_resumed(sharded: tuple[LaunchResult, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    output = tmp_path / "out"
    words = ("--layout", "sharded", "--resume")
    killed = _demo(output, *words, env={"PYTHONPATH": path})
    assert killed.returncode == 1
    assert "Error: rank 1 was ended by SIGKILL" in killed.stderr
    assert "the same command with --resume goes on" in killed.stderr
    assert "Traceback" not in killed.stderr
    assert (output / "checkpoints" / "checkpoint-000002").is_dir()
    # With more processes than before.
    resumed = _demo(output, *words, nproc=3, launcher="spawn").check()
    assert "resumed        after iteration 2" in resumed.stdout
    result = _result(output)
    assert result["settings"]["resumed_after"] == 2
    expected = sharded[1]["psnr_db"]["per_iteration"]
    # Those before the kill were read, those after it computed.
    assert result["psnr_db"]["per_iteration"][:2] == expected[:2]
    assert result["psnr_db"]["per_iteration"] == pytest.approx(expected, abs=1e-4)
    assert {file.name for file in output.iterdir()} == FILES


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_command(how: signal.Signals, tmp_path: Path) -> None:
    log, script = tmp_path / "log", tmp_path / "shardinv"
    script.write_text(PROGRAM)
    log.touch()
    words = ["demo", *SMALL, "--iterations", "100000", "--output", str(tmp_path / "out")]
    process = SHARDINV.fork(script, words, dict(os.environ), log, log)
    workers: list[int] = []
    try:
        _until(lambda: "reconstructing" in log.read_text() or process.poll() is not None, 120)
        workers = _children(process.pid)
        assert len(workers) == 2
        os.kill(process.pid, how)
        _until(lambda: process.poll() is not None, 30)
        status = process.poll()
        assert status == (130 if how is signal.SIGINT else -signal.SIGKILL)
        _until(lambda: not any(map(_runs, workers)), 30)
        if how is signal.SIGINT:
            assert "interrupted, all processes are ended" in log.read_text()
            assert "Traceback" not in log.read_text()
    finally:
        for pid in (process.pid, *workers):
            if _runs(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _until(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def _ps(*columns: str) -> list[list[str]]:
    listing = subprocess.run(
        ["ps", "-eo", ",".join(f"{column}=" for column in columns)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [line.split() for line in listing.splitlines()]


def _children(pid: int) -> list[int]:
    return [int(child) for child, parent in _ps("pid", "ppid") if int(parent) == pid]


def _runs(pid: int) -> bool:
    rows = _ps("pid", "stat")
    return any(int(other) == pid and not state.startswith("Z") for other, state in rows)
