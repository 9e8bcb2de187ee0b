"""The examples give the same result on one process and on several."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.launch import launch_script

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_same_result_however_many_processes_and_in_either_layout() -> None:
    results = []
    for name, launcher, processes in (
        ("plug_and_play", "plain", 1),
        ("plug_and_play", "torchrun", 2),
        ("sharded", "torchrun", 3),
    ):
        script = EXAMPLES / f"{name}.py"
        run = launch_script(script, processes, launcher=launcher).check()  # type: ignore[arg-type]
        assert len(re.findall(r"^iteration", run.stdout, re.MULTILINE)) == 10
        found = re.search(r"PSNR ([\d.]+) dB, norm of the image ([\d.]+)", run.stdout)
        assert found is not None
        results.append([float(number) for number in found.groups()])
    alone, together, sharded = results
    assert together == pytest.approx(alone, rel=1e-5)
    assert sharded == pytest.approx(alone, rel=1e-5)
    assert alone[0] > 33
