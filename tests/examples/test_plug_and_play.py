"""The examples give the same result on one process and on several."""

from __future__ import annotations

import re

import pytest

from tests.examples.programs import EXAMPLES, example
from tests.harness import WorkerPool
from tests.harness.launch import launch_script


def test_same_result_however_many_processes_and_in_either_layout(pool: WorkerPool) -> None:
    script = EXAMPLES / "plug_and_play.py"
    outputs = [
        pool.run(example, "plug_and_play", world_size=1)[0],
        launch_script(script, 2, launcher="spawn").check().stdout,
        pool.run(example, "sharded", world_size=3)[0],
    ]
    results = []
    for output in outputs:
        assert len(re.findall(r"^iteration", output, re.MULTILINE)) == 10
        found = re.search(r"PSNR ([\d.]+) dB, norm of the image ([\d.]+)", output)
        assert found is not None
        results.append([float(number) for number in found.groups()])
    alone, together, sharded = results
    assert together == pytest.approx(alone, rel=1e-5)
    assert sharded == pytest.approx(alone, rel=1e-5)
    assert alone[0] > 33
