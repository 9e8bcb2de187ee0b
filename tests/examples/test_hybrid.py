"""Groups of ranks: torch's data parallelism between them, one image within each."""

from __future__ import annotations

import re

from tests.examples.programs import example
from tests.harness import WorkerPool

LINES = re.compile(r"loss ([\d.]+)|weights ([\d.]+)")


def test_groups_train_as_one_process_does(pool: WorkerPool) -> None:
    """Two groups of two, with DDP and with FSDP2, and one process."""
    found = []
    for world_size, arguments in ((1, ()), (4, ()), (4, ("--fsdp",))):
        printed, *others = pool.run(example, "hybrid", *arguments, world_size=world_size)
        assert not any(others)
        assert f"{min(2, world_size)} groups of {max(1, world_size // 2)}" in printed
        found.append([float(a or b) for a, b in LINES.findall(printed)])
    alone, ddp, fsdp = found
    assert len(alone) == 7
    for numbers in (ddp, fsdp):
        assert max(abs(a - b) / b for a, b in zip(numbers, alone, strict=True)) < 1e-4
