"""Runs an example on the pool's processes, which have imported everything already."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

from shardinv import DistributedContext

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(ctx: DistributedContext, name: str, *arguments: str) -> str:
    """What this rank prints."""
    path, printed = str(EXAMPLES / f"{name}.py"), io.StringIO()
    with patch.object(sys, "argv", [path, *arguments]), contextlib.redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()
