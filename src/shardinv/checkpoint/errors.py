"""What goes wrong with a checkpoint."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that is missing, was not finished, or does not hold what is asked of it."""
