"""Real processes: results, environment variables, and that nothing outlives its time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.harness.launch import Launcher, LaunchTimeout, launch_script

PRINT_PLACE = """
    import os, sys
    names = sys.argv[1:]
    print(*(os.environ.get(name) for name in names))
"""


@pytest.mark.parametrize(
    ("launcher", "names"),
    [
        ("spawn", ["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
        ("slurm-env", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"]),
        (
            "mpi-env",
            ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
        ),
        ("pmi-env", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"]),
    ],
)
def test_every_rank_gets_its_place(launcher: Launcher, names: list[str]) -> None:
    result = launch_script(PRINT_PLACE, 2, launcher=launcher, arguments=names).check()
    assert result.stdouts == ("0 2 0\n", "1 2 1\n")
    assert result.returncodes == (0, 0)


def test_plain_process_has_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("EXTRA", "3")
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ.get('RANK'), os.environ.get('EXTRA'))")
    assert launch_script(script).check().stdout == "None 3\n"
    assert launch_script(script, env={"EXTRA": None}).check().stdout == "None None\n"
    with pytest.raises(ValueError, match="one process"):
        launch_script(script, 2)


def test_failure_of_one_rank_is_reported() -> None:
    code = """
        import os, sys
        print("before")
        sys.exit(5 if os.environ["RANK"] == "1" else 0)
    """
    result = launch_script(code, 2, launcher="spawn")
    assert result.returncode == 5
    assert result.returncodes == (0, 5)
    with pytest.raises(AssertionError, match="before"):
        result.check()


@pytest.mark.parametrize("fresh", [True, False])
def test_a_program_ends_as_it_does_alone(fresh: bool) -> None:
    code = """
        import atexit, os, signal, sys, threading, time
        atexit.register(print, "exit functions run")
        threading.Thread(target=lambda: (time.sleep(0.1), print("threads are awaited"))).start()
        assert __name__ == "__main__"
        assert sys.modules["__main__"].__file__ == __file__ == sys.argv[0]
        how = "raise exit kill".split()[int(os.environ["RANK"])]
        if how == "raise":
            raise ValueError("broke")
        if how == "exit":
            sys.exit("a message")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    result = launch_script(code, 3, launcher="spawn", fresh=fresh)
    assert result.returncodes == (1, 1, -9)
    ended = "threads are awaited\nexit functions run\n"
    assert result.stdouts == (ended, ended, "")
    assert result.stderrs[0].startswith("Traceback (most recent call last):\n")
    assert result.stderrs[0].endswith(
        'in <module>\n    raise ValueError("broke")\nValueError: broke\n'
    )
    assert result.stderrs[1:] == ("a message\n", "")


def test_torchrun_and_its_workers_end_in_time() -> None:
    code = """
        import os, time
        print(os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "pid", os.getpid(), flush=True)
        time.sleep(100)
    """
    began = time.monotonic()
    with pytest.raises(LaunchTimeout, match="1 of 1 processes still ran") as timeout:
        launch_script(code, 2, launcher="torchrun", timeout=8)
    assert time.monotonic() - began < 15
    lines = [line.split() for line in str(timeout.value).splitlines() if " pid " in line]
    if not lines:
        pytest.skip("torchrun took more than its time to start")
    assert sorted(line[0] for line in lines) == ["0", "1"]
    time.sleep(0.5)
    for line in lines:
        assert not _runs(int(line[-1]))


def _runs(pid: int) -> bool:
    """Whether a process that isn't our child runs; one that has ended may not be reaped yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "State:\tZ" in status.read_text())
