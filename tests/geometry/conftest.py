"""Settings of hypothesis: no deadline, since machines may be shared, and the same draws each run.

Loaded on import, because ``@given`` reads the settings when a test module is imported.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("geometry", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("geometry")
