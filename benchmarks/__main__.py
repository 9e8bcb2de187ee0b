"""``python -m benchmarks``: shardinv beside the peer. See also ``benchmarks.memory``."""

from __future__ import annotations

import typer

from benchmarks.against_deepinv import main

typer.run(main)
