"""What goes wrong with a sharded image: an operation without a rule, layouts that don't meet."""

from __future__ import annotations


class UnsupportedOperation(NotImplementedError):
    """An operation on a sharded tensor that has no rule: it is refused rather than done wrongly."""


class LayoutError(ValueError):
    """Tensors that lie on the ranks in different ways were to be combined."""
