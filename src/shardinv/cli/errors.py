"""The mistakes of a user, as opposed to those of the program."""

from __future__ import annotations


class UsageError(ValueError):
    """An option or a file that can't be used: shown as one line, without a traceback.

    Parameters
    ----------
    message
        What was given, what was expected, what to do.
    told
        Whether to show it: of several ranks that find the same mistake, only one speaks.
    """

    def __init__(self, message: str, *, told: bool = True) -> None:
        super().__init__(message)
        self.told = told
