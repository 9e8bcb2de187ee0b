"""Packages that only studies need: the extra "study"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardinv.cli.errors import UsageError


@contextmanager
def needing_extra(what: str) -> Iterator[None]:
    """Say how to install a package that an import inside doesn't find.

    Parameters
    ----------
    what
        Needs it: the begin of the sentence.

    Raises
    ------
    UsageError
        If one isn't there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("shardinv"):
            raise
        raise UsageError(
            f"{what} the package {error.name}: pip install 'shardinv[study]'"
        ) from None
