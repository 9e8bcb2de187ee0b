"""What the tests share: a pool of gloo workers, a launcher of real processes, reusable checks.

See ``pool`` for how to write a test of several ranks.
"""

from __future__ import annotations

from tests.harness.checks import (
    adjoint_dot_test,
    assert_close,
    assert_same_on_every_rank,
    compare_with_reference,
    gradients,
    relative_error,
)
from tests.harness.launch import LaunchResult, LaunchTimeout, launch_script
from tests.harness.outcome import FailedRank, WorkerFailure, assert_every_rank_raised
from tests.harness.pool import WORLD_SIZES, WorkerPool

__all__ = [
    "WORLD_SIZES",
    "FailedRank",
    "LaunchResult",
    "LaunchTimeout",
    "WorkerFailure",
    "WorkerPool",
    "adjoint_dot_test",
    "assert_close",
    "assert_every_rank_raised",
    "assert_same_on_every_rank",
    "compare_with_reference",
    "gradients",
    "launch_script",
    "relative_error",
]
