"""``python -m benchmarks``: the one benchmark there is."""

from __future__ import annotations

import typer

from benchmarks.against_deepinv import main

typer.run(main)
