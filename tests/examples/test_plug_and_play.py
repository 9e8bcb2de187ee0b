"""The examples give the same result on one process and on several."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.launch import launch_script

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), [("plug_and_play", 2), ("sharded", 3)])
def test_same_result_on_one_process_and_several(name: str, ranks: int) -> None:
    results = []
    script = EXAMPLES / f"{name}.py"
    for launcher, processes in (("plain", 1), ("torchrun", ranks)):
        run = launch_script(script, processes, launcher=launcher).check()  # type: ignore[arg-type]
        assert len(re.findall(r"^iteration", run.stdout, re.MULTILINE)) == 10
        found = re.search(r"PSNR ([\d.]+) dB, norm of the image ([\d.]+)", run.stdout)
        assert found is not None
        results.append([float(number) for number in found.groups()])
    alone, together = results
    assert together == pytest.approx(alone, rel=1e-5)
    assert alone[0] > 33
