"""What a check has found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "failed"]
_ORDER: tuple[Status, ...] = ("ok", "warning", "failed")
_LISTED = 8


@dataclass(frozen=True)
class Finding:
    """One line of what ``shardinv check`` says.

    Parameters
    ----------
    name
        What was checked.
    status
        ``failed``: the run would be wrong, or could not be done; ``warning``: it would be slower,
        or less exact, than it could be.
    figures
        What was measured: plain data, with units in the names.
    message
        The same for people.
    remedy
        What to change; needed unless all is well.
    """

    name: str
    status: Status
    figures: dict[str, Any]
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status != "ok" and not self.remedy:
            raise ValueError(f"the finding '{self.name}' is no {self.status} without a remedy")

    def record(self) -> dict[str, Any]:
        """Plain data, ready for JSON, which knows no NaN and no infinity: they become None."""
        return {**vars(self), "figures": _plain(self.figures)}


def worst(findings: Iterable[Finding]) -> Status:
    """The gravest status of all."""
    return max((finding.status for finding in findings), key=_ORDER.index, default="ok")


def by_rank(values: Sequence[Any], show: Callable[[Any], str] = str) -> str:
    """A number of each rank, in words: all the same, each, or from the least to the most.

    Examples
    --------
    >>> by_rank([2, 2, 2]), by_rank([2, 1]), by_rank(range(20))
    ('2 each', '2, 1', '0 to 19')
    """
    if len(values) > 1 and all(show(value) == show(values[0]) for value in values):
        return f"{show(values[0])} each"
    if len(values) <= _LISTED:
        return ", ".join(map(show, values))
    return f"{show(min(values))} to {show(max(values))}"


def ranks(numbers: Sequence[int]) -> str:
    """Ranks by name.

    Examples
    --------
    >>> ranks([3]), ranks([0, 2]), ranks(range(4, 16))
    ('rank 3', 'ranks 0, 2', '12 ranks (4 to 15)')
    """
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) <= _LISTED:
        return f"ranks {', '.join(map(str, numbers))}"
    return f"{len(numbers)} ranks ({min(numbers)} to {max(numbers)})"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
