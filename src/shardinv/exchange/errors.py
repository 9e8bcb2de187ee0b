"""What goes wrong between ranks."""

from __future__ import annotations


class RankError(RuntimeError):
    """Another rank failed, or did not answer in time; the message says which and why."""


class DisagreementError(ValueError):
    """Ranks hold different shapes, types or values where they must hold the same."""
