"""What rank 0 shows while it works: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


class Report(Protocol):
    """Called after each iteration."""

    def __call__(self, *, residual: float, psnr_db: float, seconds: float) -> None:
        """Show the iterate's relative change, its PSNR, and the seconds the iteration took."""


@contextmanager
def progress(title: str, iterations: int, *, shown: bool, done: int = 0) -> Iterator[Report]:
    """Show the progress of a loop.

    Parameters
    ----------
    title
        What is being done.
    iterations
        How many there are.
    shown
        False on all ranks but one.
    done
        How many of them are behind; the report will be called for each of the others.
    """
    console = Console(file=sys.stdout)
    if not shown:
        yield _silent
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(title, total=iterations, completed=done, facts="")

            def advance(*, residual: float, psnr_db: float, seconds: float) -> None:
                # Short enough to leave room for a bar in 80 columns.
                facts = f"residual {residual:.1e}  PSNR {psnr_db:.2f} dB  {seconds:.2f} s/it"
                bar.update(task, advance=1, facts=facts)

            yield advance
    else:
        yield _Lines(title, iterations, done)


class _Lines:
    """Lines for a log file: the first, the last, and one every ten seconds."""

    def __init__(self, title: str, iterations: int, done: int) -> None:
        self.title = title
        self.iterations = iterations
        self.done = done
        self.last = -_SECONDS_BETWEEN_LINES

    def __call__(self, *, residual: float, psnr_db: float, seconds: float) -> None:
        self.done += 1
        now = time.monotonic()
        if self.done < self.iterations and now - self.last < _SECONDS_BETWEEN_LINES:
            return
        self.last = now
        print(
            f"{self.title} {self.done}/{self.iterations}  residual {residual:.1e}  "
            f"PSNR {psnr_db:.2f} dB  {seconds:.2f} s/iteration",
            flush=True,
        )


def _silent(*, residual: float, psnr_db: float, seconds: float) -> None:
    pass
