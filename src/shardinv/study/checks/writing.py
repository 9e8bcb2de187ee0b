"""Whether one rank writes, and all ranks see what it wrote."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from shardinv import DistributedContext
from shardinv.denoise.memory import show_memory
from shardinv.io import atomic_file, write_json
from shardinv.study.checks.finding import Finding, ranks
from shardinv.study.checks.telling import tell

_LITTLE = 2**30

Write = Callable[[DistributedContext, Path], None]


def write_result(ctx: DistributedContext, folder: Path) -> None:
    """Write a result as the commands of this package do: every rank comes by, rank 0 writes."""
    result = {"ranks": ctx.world_size} if ctx.is_main else None
    if result is not None:
        write_json(folder / "result.json", result)


def writers(
    ctx: DistributedContext, folder: Path, write: Write = write_result
) -> tuple[Finding, list[int]]:
    """Let every rank write a result, each with a folder of its own, and see whose isn't empty.

    Every rank must call it.

    Parameters
    ----------
    ctx
        The ranks.
    folder
        Where. It is left as it was.
    write
        What is done on every rank to write a result into a folder.

    Returns
    -------
    Finding
        Whether it was rank 0 alone.
    list of int
        The ranks that wrote.
    """
    mine = folder / ".check" / str(ctx.rank)
    problem = None
    try:
        mine.mkdir(parents=True)
        write(ctx, mine)
        wrote = any(mine.rglob("*"))
    except OSError as error:
        problem, wrote = str(error), False
    finally:
        shutil.rmtree(mine, ignore_errors=True)
    told = tell(ctx, (wrote, problem))
    if ctx.is_main:
        shutil.rmtree(mine.parent, ignore_errors=True)
    found = [rank for rank, (each, _) in enumerate(told) if each]
    return _one_writer(found, [problem for _, problem in told]), found


def _one_writer(found: Sequence[int], problems: Sequence[str | None]) -> Finding:
    name, figures = "writing: one rank", {"writers": list(found), "problems": list(problems)}
    broken = [rank for rank, problem in enumerate(problems) if problem is not None]
    if broken:
        message = f"{ranks(broken)} could not write: {problems[broken[0]]}"
        return Finding(name, "failed", figures, message, "--output: a folder that you may write to")
    if list(found) == [0]:
        return Finding(name, "ok", figures, "results are written by 1 rank, rank 0")
    if not found:
        message = "no rank wrote a result"
        return Finding(name, "failed", figures, message, "write on rank 0: if ctx.is_main")
    message = f"{len(found)} ranks write the same file: {ranks(found)}"
    remedy = "write on rank 0 alone: if ctx.is_main: ..., or through ctx.save, by all ranks"
    return Finding(name, "failed", figures, message, remedy)


def shared_folder(ctx: DistributedContext, folder: Path) -> Finding:
    """Whether a file that rank 0 writes is read by all ranks: whether it is one folder for all.

    Every rank must call it.

    Parameters
    ----------
    ctx
        The ranks.
    folder
        Where results are to be; made if it isn't there.
    """
    token, problem = "", None
    file = folder / f".check-{tell(ctx, secrets.token_hex(8))[0]}"
    if ctx.is_main:
        token = secrets.token_hex(16)
        try:
            with atomic_file(file) as temporary:
                temporary.write_text(token)
        except OSError as error:
            problem = str(error)
    wanted, problem = tell(ctx, (token, problem))[0]
    try:
        seen = file.read_text()
    except OSError as error:
        seen = f"{error.strerror or error}"
    told = tell(ctx, seen)
    free = tell(ctx, _free(folder))[0]
    if ctx.is_main:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    return _shared(folder, problem, [each == wanted for each in told], free)


def _shared(folder: Path, problem: str | None, same: Sequence[bool], free: int | None) -> Finding:
    name = "writing: folder"
    figures = {"folder": str(folder), "reads_rank_0": list(same), "free_bytes": free}
    if problem is not None:
        message = f"rank 0 can't write to {folder}: {problem}"
        return Finding(name, "failed", figures, message, "--output: a folder that you may write to")
    blind = [rank for rank, each in enumerate(same) if not each]
    if blind:
        message = f"what rank 0 writes to {folder} is not there for {ranks(blind)}"
        remedy = (
            "--output: a folder on a file system that all hosts share; their own /tmp or home are "
            "not"
        )
        return Finding(name, "failed", figures, message, remedy)
    message = f"{folder} can be written to by rank 0"
    message += f" and is the same for all {len(same)} ranks" if len(same) > 1 else ""
    message += f"; {show_memory(free)} free" if free is not None else ""
    if free is not None and free < _LITTLE:
        remedy = "make room, or --output: a folder on another disk"
        return Finding(name, "warning", figures, message, remedy)
    return Finding(name, "ok", figures, message)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
