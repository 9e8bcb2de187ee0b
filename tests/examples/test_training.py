"""The training examples learn, and end with the same weights on one process and on several."""

from __future__ import annotations

import re

import pytest

from tests.examples.programs import example
from tests.harness import WorkerPool


@pytest.mark.parametrize(("name", "gain"), [("train_unrolled", 6.0), ("equivariant_imaging", 4.0)])
def test_same_weights_however_many_processes(pool: WorkerPool, name: str, gain: float) -> None:
    found = []
    for world_size in (1, 2):
        printed, *others = pool.run(example, name, "--epochs", "1", world_size=world_size)
        assert not any(others)
        quality = re.search(r"PSNR ([\d.]+) dB before training, ([\d.]+) dB after", printed)
        norm = re.search(r"norm of the weights ([\d.]+)", printed)
        assert quality is not None
        assert norm is not None
        before, after = map(float, quality.groups())
        assert after > before + gain
        found.append([before, after, float(norm[1])])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
