"""Fixtures that every test may use; the machinery behind them lives in ``tests/harness``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.pool import WorkerPool

# Several processes share few cores: one thread each, the pytest process (which computes the
# undistributed references) included. Read when torch is first imported, so it is set here.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """Gloo worker processes that stay up for the whole run, see :mod:`tests.harness.pool`."""
    # Imported here so that tests of pure geometry don't wait for torch.
    from tests.harness.pool import WorkerPool

    with WorkerPool() as workers:
        yield workers
