"""A block has the state of the module that it wraps, under that module's own names."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NoReturn, Self

from torch import nn


def share_state(block: nn.Module, wrapped: nn.Module) -> None:
    """Make a block's parameters, buffers and submodules those of the module it wraps.

    The two share the very same tables. So ``state_dict`` has the keys of the wrapped module and a
    checkpoint goes back and forth between one process and many; ``parameters()``, ``to()`` and
    ``load_state_dict`` act on the wrapped module; and a deep copy shares its own tables again.
    """
    for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        block.__dict__[table] = wrapped.__dict__[table]


class TiedToRanks:
    """A module that may be copied, since the copy works with the same ranks, but not pickled."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(deepcopy(self.__dict__, memo))
        return twin

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} works with other processes and cannot be pickled. Save "
            "state_dict() (its keys are those of the undistributed object), or distribute anew "
            "after loading"
        )
