"""Points as jobs of a SLURM cluster, several at the same time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import typer
from submitit.core.utils import FailedJobError, FailedSubmissionError

from shardinv.cli.errors import UsageError
from shardinv.cli.study.launch.executor import PointExecutor, PointJob
from shardinv.cli.study.launch.failure import why
from shardinv.cli.study.launch.launcher import Ended, words
from shardinv.cli.study.launch.rank import job_folder
from shardinv.cli.study.launch.stop import Stop
from shardinv.cli.study.results import Results
from shardinv.io import atomic_file
from shardinv.study.plan.launch import LaunchSettings
from shardinv.study.plan.point import Point

_POLL_SECONDS = 0.5
# What a job has written on another host may be seen here this much later.
_FILES_SECONDS = 15.0


class SlurmLauncher:
    """Runs each point as a job.

    Parameters
    ----------
    settings
        What jobs ask for.
    results
        Where points leave what they gave, or their errors; seen by all nodes. Scripts and logs are
        in its folder ``jobs``.
    """

    def __init__(self, settings: LaunchSettings, results: Results) -> None:
        self._settings = settings
        self._results = Results(results.folder.resolve())

    def write(self, points: Sequence[Point]) -> Iterator[tuple[Path, str]]:
        """Write the jobs' scripts, ready for ``sbatch``, and give each with its text.

        Raises
        ------
        UsageError
            If a point can't be asked for with these settings.
        """
        self._check(points)
        for point in points:
            executor = self._executor(point)
            yield executor.write(), executor.script()

    def run(
        self, points: Sequence[Point], tell: Callable[[str], None]
    ) -> Generator[Ended, None, None]:
        """Submit points and wait for them; see `Launcher`.

        Raises
        ------
        UsageError
            If there is no SLURM, or a point can't be asked for with these settings.
        """
        self._check(points)
        if not all(map(shutil.which, ("sbatch", "squeue", "scancel"))):
            raise UsageError(
                "there is no SLURM here (sbatch, squeue, scancel): run this on a login node of the "
                "cluster, or add --dry-run to see the jobs' scripts"
            )
        waiting = list(points)
        active: dict[Point, PointJob] = {}
        said = ""
        with Stop() as stop:
            try:
                while waiting or active:
                    while not stop and (point := self._next(waiting, active)) is not None:
                        waiting.remove(point)
                        job = self._submit(point)
                        if job is None:
                            yield Ended(point, False)
                        else:
                            active[point] = job
                    if stop:
                        raise KeyboardInterrupt
                    for point in [point for point, job in active.items() if job.done()]:
                        # Until then it is to be cancelled, whatever happens.
                        measured = self._finish(point, active[point])
                        del active[point]
                        yield Ended(point, measured)
                    what = _state(waiting, active)
                    if what != said:
                        tell(what)
                        said = what
                    stop.wait(_POLL_SECONDS)
            finally:
                for job in active.values():
                    job.cancel(check=False)

    def _check(self, points: Sequence[Point]) -> None:
        """Before the first job, so that a mistake is not told after hours."""
        for point in points:
            try:
                self._settings.resources(point)
            except ValueError as error:
                raise UsageError(f"{words(point)}: {error}") from None

    def _executor(self, point: Point) -> PointExecutor:
        folder = job_folder(self._results, point)
        return PointExecutor(self._settings, point, self._results.folder, folder)

    def _next(self, waiting: list[Point], active: dict[Point, PointJob]) -> Point | None:
        """The first point that may start now: not before the runs that it is compared with."""
        most = self._settings.max_jobs
        if most is not None and len(active) >= most:
            return None
        # Reference runs name each other: a point waits for those that come before it only, which is
        # what it finds when points run one after the other.
        before = set(active)
        for point in waiting:
            if before.isdisjoint(point.references.values()):
                return point
            before.add(point)
        return None

    def _submit(self, point: Point) -> PointJob | None:
        self._results.error(point).unlink(missing_ok=True)
        try:
            return self._executor(point).start()
        except (FailedJobError, FailedSubmissionError) as error:
            # What sbatch said of it is submitit's message.
            first = next(iter(str(error).splitlines()), "")
            self._record(point, f"the job was refused: {first}", f"{error}\n")
            return None

    def _finish(self, point: Point, job: PointJob) -> bool:
        folder = job_folder(self._results, point)
        if job.exception() is None:
            until = time.monotonic() + _FILES_SECONDS
            while not self._results.has(point) and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
            if self._results.has(point):
                return True
            line = (
                f"SLURM job {job.job_id} ended well but left no {self._results.file(point)}: do "
                "its node and this host see the same folder?"
            )
            self._record(point, line, line + "\n")
        else:
            self._record(point, *why(job, folder))
        return False

    def _record(self, point: Point, line: str, details: str) -> None:
        file = self._results.error(point)
        with atomic_file(file) as temporary:
            temporary.write_text(details, encoding="utf-8")
        typer.echo(f"Error: {words(point)}: {line} (more in {file})", err=True)


def _state(waiting: Sequence[Point], active: dict[Point, PointJob]) -> str:
    """How many run and how many wait, and what the first of those waits for."""
    infos = [job.get_info(mode="cache") for job in active.values()]
    queued = [info for info in infos if info.get("State") in (None, "PENDING", "CONFIGURING")]
    running = len(active) - len(queued)
    reason = next((info["Reason"] for info in queued if info.get("Reason", "None") != "None"), "")
    rest = len(waiting) + len(queued)
    return f"{running} running, {rest} waiting" + (f" ({reason})" if reason else "")
