"""How a run on the pool can go wrong: one record a rank, and the exception that carries them.

Plain data only; the pool decides when a run has failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


def qualified_name(exception_type: type) -> str:
    """Return ``module.name`` of a class, the form in which types cross process borders."""
    return f"{exception_type.__module__}.{exception_type.__qualname__}"


@dataclass(frozen=True)
class FailedRank:
    """What stopped one rank.

    Parameters
    ----------
    kind : {"raised", "died", "unanswered"}
        An exception; the end of the process; or no answer in time.
    type_name : str
        Name of the exception's class without its module, or the kind.
    message : str
        ``str(exception)``, or how the process ended, or how long it was waited for.
    traceback : str
        The traceback, or, for an unanswered rank, the stacks of all its threads.
    bases : tuple of str
        Qualified names of the exception's class and its bases.
    """

    kind: Literal["raised", "died", "unanswered"]
    type_name: str
    message: str
    traceback: str
    bases: tuple[str, ...] = ()

    def is_a(self, exception_type: type[BaseException]) -> bool:
        """Whether ``except exception_type`` would have caught it on its rank."""
        return qualified_name(exception_type) in self.bases

    def headline(self) -> str:
        """Say in a few words what happened, to follow the rank's name."""
        if self.kind == "raised":
            return f"raised {self.type_name}: {self.message}"
        return self.message


class WorkerFailure(RuntimeError):
    """A function sent to the pool didn't return on every rank.

    Parameters
    ----------
    what : str
        The function, the world size and the time it took.
    errors : mapping of int to FailedRank
        The ranks that failed; those missing had returned.
    output : str
        What the workers printed during the run.
    """

    def __init__(self, what: str, errors: Mapping[int, FailedRank], output: str = "") -> None:
        self.errors = dict(sorted(errors.items()))
        super().__init__(_report(what, self.errors, output))


def _report(what: str, errors: Mapping[int, FailedRank], output: str) -> str:
    lines = [what]
    lines += [f"  rank {rank} {error.headline()}" for rank, error in errors.items()]
    shown: dict[str, list[int]] = {}
    for rank, error in errors.items():
        shown.setdefault(error.traceback.rstrip(), []).append(rank)
    for traceback, ranks in shown.items():
        if traceback:
            label = "rank" if len(ranks) == 1 else "ranks"
            lines += ["", f"--- {label} {', '.join(map(str, ranks))} ---", traceback]
    if output:
        lines += ["", "--- output of the workers ---", output.rstrip()]
    return "\n".join(lines)


def assert_every_rank_raised(
    outcomes: Sequence[Any], exception_type: type[BaseException], match: str | None = None
) -> None:
    """Assert that every rank raised the same kind of error, as bad input must make it do.

    Parameters
    ----------
    outcomes : sequence
        What ``pool.run(..., expect_error=True)`` returned.
    exception_type : type
        Expected class; a subclass will do.
    match : str, optional
        Regular expression to find in every message.
    """
    complaints: list[str] = []
    failed = {rank: out for rank, out in enumerate(outcomes) if isinstance(out, FailedRank)}
    for rank, outcome in enumerate(outcomes):
        if not isinstance(outcome, FailedRank):
            complaints.append(f"rank {rank} raised nothing and returned {outcome!r}")
        elif not outcome.is_a(exception_type):
            complaints.append(f"rank {rank} {outcome.headline()}")
        elif match is not None and not re.search(match, outcome.message):
            complaints.append(f"rank {rank}: {match!r} not found in {outcome.message!r}")
    if complaints:
        what = f"expected {exception_type.__name__} on every rank, but " + "; ".join(complaints)
        raise AssertionError(_report(what, failed, ""))
