"""The folder of checkpoints: their names, which are whole, which is newest, which may go.

A checkpoint is written under a name that nobody looks for, and renamed when it is whole. Only rank
0 works here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from shardinv.checkpoint.errors import CheckpointError

FORMAT = 1
MANIFEST = "shardinv.json"
_NAME = re.compile(r"checkpoint-(\d{6,})")
_WRITING, _OLD = ".writing-", ".old-"


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder with their numbers, oldest first, whole or not."""
    if not folder.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder that is whole and of this format."""
    for _, path in reversed(numbered(folder)):
        with contextlib.suppress(CheckpointError):
            read_manifest(path)
            return path
    return None


def find(folder: Path) -> Path:
    """The checkpoint that a path means: itself, or the newest whole one inside.

    Raises
    ------
    CheckpointError
        If there is none, saying what there is.
    """
    if not folder.exists():
        raise CheckpointError(f"there is no folder {folder}")
    if (folder / MANIFEST).exists() or _NAME.fullmatch(folder.name):
        return folder
    newest = latest(folder)
    if newest is not None:
        return newest
    broken = numbered(folder)
    if broken:
        try:
            read_manifest(broken[-1][1])
        except CheckpointError as error:
            raise CheckpointError(f"{folder} holds no readable checkpoint: {error}") from None
    raise CheckpointError(f"{folder} holds no checkpoint (ctx.save makes them)")


def begin(folder: Path) -> Path:
    """An empty folder to write to. What earlier runs left unfinished is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name.startswith((_WRITING, _OLD)):
            shutil.rmtree(path, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=_WRITING, dir=folder))
    # mkdtemp makes it for the owner alone; another rank may be another user's on another host.
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o777 & ~mask)
    return path


def finish(written: Path, content: dict[str, Any]) -> Path:
    """Give a folder whose data are written its manifest and its name.

    Returns
    -------
    Path
        Where the checkpoint is now.
    """
    files = {path.name: path.stat().st_size for path in written.iterdir()}
    manifest = {
        "format": FORMAT,
        "versions": {"shardinv": version("shardinv"), "torch": str(torch.__version__)},
        **content,
        "files": files,
    }
    with (written / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    _sync(written)
    folder = written.parent
    existing = numbered(folder)
    path = folder / f"checkpoint-{existing[-1][0] + 1 if existing else 1:06d}"
    written.rename(path)
    _sync(folder)
    return path


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints."""
    for _, path in numbered(folder)[:-keep]:
        # Renamed first: one that is being removed must not be taken for a whole one.
        doomed = path.with_name(f"{_OLD}{path.name}")
        with contextlib.suppress(OSError):
            path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint holds.

    Raises
    ------
    CheckpointError
        If it was not finished, misses a file, or has another format.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        number, versions = manifest["format"], manifest["versions"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is no checkpoint, or was not written to its end: it has no {MANIFEST}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / MANIFEST} can't be read: {error!r}") from None
    if number != FORMAT:
        raise CheckpointError(
            f"{path} has format {number} (of shardinv {versions.get('shardinv')}), this version "
            f"reads format {FORMAT}: load it with the version that wrote it"
        )
    for name, size in manifest["files"].items():
        try:
            found = (path / name).stat().st_size
        except OSError:
            raise CheckpointError(f"{path} is not whole: {name} is missing") from None
        if found != size:
            raise CheckpointError(
                f"{path} is not whole: {name} has {found} bytes, {size} were written"
            )
    return manifest


def _sync(folder: Path) -> None:
    """Make new names durable; systems that can't open a folder do it by themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
