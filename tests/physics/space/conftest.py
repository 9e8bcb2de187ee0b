"""Settings of hypothesis: no deadline on shared machines, the same draws each run."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("space", deadline=None, derandomize=True, max_examples=8)
settings.load_profile("space")
