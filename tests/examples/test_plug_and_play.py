"""The example gives the same result on one process and on two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.launch import launch_script

SCRIPT = Path(__file__).parents[2] / "examples" / "plug_and_play.py"


@pytest.mark.slow
def test_same_result_on_one_process_and_two() -> None:
    results = []
    for launcher, processes in (("plain", 1), ("torchrun", 2)):
        run = launch_script(SCRIPT, processes, launcher=launcher).check()  # type: ignore[arg-type]
        assert len(re.findall(r"^iteration", run.stdout, re.MULTILINE)) == 10
        found = re.search(r"PSNR ([\d.]+) dB, norm of the image ([\d.]+)", run.stdout)
        assert found is not None
        results.append([float(number) for number in found.groups()])
    alone, together = results
    assert together == pytest.approx(alone, rel=1e-5)
    assert alone[0] > 33
