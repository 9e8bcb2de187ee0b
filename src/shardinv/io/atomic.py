"""Writing a file whole or not at all.

A reader never sees half a file, and a run that is interrupted leaves the previous one in place.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Give a temporary path to write to; on success it becomes ``path``, else it is removed.

    Parameters
    ----------
    path
        Where the file shall be. Missing folders are made.

    Yields
    ------
    Path
        A file in the same folder, with the same suffix (libraries choose a format by it).

    Raises
    ------
    OSError
        If the folder can't be made or written to.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_file(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files for the owner alone; a result has the permissions of any new file.
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Give an empty folder to fill; on success it becomes ``path``, else it is removed.

    Parameters
    ----------
    path
        Where the folder shall be. Another one there is replaced; for the moment between two
        renamings there is none.

    Yields
    ------
    Path
        A folder beside it, with the same suffix.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix))
    old = temporary.with_name(f"{temporary.name}.old")
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as indented JSON, whole or not at all.

    Raises
    ------
    ValueError
        If the value holds a NaN or an infinity, which JSON doesn't have.
    """
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the new name durable; systems that can't open a folder do it by themselves."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
