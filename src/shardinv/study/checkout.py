"""Which state of the source a result came from."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import shardinv


@dataclass(frozen=True)
class Checkout:
    """A commit of the source.

    Parameters
    ----------
    commit
        Its hash.
    changed
        Whether files of the package differ from it.
    """

    commit: str
    changed: bool


def checkout(package: Path | None = None) -> Checkout | None:
    """That of the package that runs; None where it doesn't lie in a checkout of its own.

    Parameters
    ----------
    package
        Folder of the package; default: shardinv's.
    """
    folder = package or Path(shardinv.__file__).parent
    # An installed package may lie in the checkout of something else, which doesn't track it.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", ".")
    return None if commit is None or changes is None else Checkout(commit, bool(changes))


def _git(folder: Path, *words: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None
