"""What a rank that fails leaves for the process that started it, and which failure came first."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from typing import Any

from shardinv import RankError
from shardinv.cli.errors import UsageError


def failure_report(error: Exception, rank: int) -> dict[str, Any]:
    """What to tell of an error, ready for JSON. To be called where the error is caught.

    Parameters
    ----------
    error
        The error.
    rank
        Of this process.
    """
    return {
        "rank": rank,
        "time": time.time(),
        # A rank that only learnt of another's failure is not the cause.
        "follows": isinstance(error, RankError),
        "message": _one_line(error),
        "traceback": traceback.format_exc(),
    }


def first_cause(reports: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Of several ranks' reports the earliest that is not of another rank's failure."""
    causes = [report for report in reports if not report["follows"]]
    return min(causes, key=lambda report: report["time"], default=None)


def _one_line(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, UsageError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
