"""A block has the state of the module that it wraps, under that module's own names."""

from __future__ import annotations

from torch import nn


def share_state(block: nn.Module, wrapped: nn.Module) -> None:
    """Make a block's parameters, buffers and submodules those of the module it wraps.

    The two share the very same tables. So ``state_dict`` has the keys of the wrapped module and a
    checkpoint goes back and forth between one process and many; ``parameters()``, ``to()`` and
    ``load_state_dict`` act on the wrapped module; and a deep copy shares its own tables again.
    """
    for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        block.__dict__[table] = wrapped.__dict__[table]
