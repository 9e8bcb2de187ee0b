"""Writes and submits the script of a point's job through submitit, and watches jobs.

submitit asks ``sacct`` how jobs are, which answers only where accounting is kept. ``squeue`` asks
the controller itself, on every cluster.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission
from submitit.helpers import clean_env
from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher, SlurmJob

from shardinv.cli.launch import process_defaults
from shardinv.cli.study.launch.rank import run_rank
from shardinv.study.plan.launch import LaunchSettings
from shardinv.study.plan.point import Point

# Of a job that the controller no longer lists: it ended minutes ago.
FORGOTTEN = "FORGOTTEN"
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "REVOKED",
    "TIMEOUT",
    FORGOTTEN,
}


class QueueWatcher(SlurmInfoWatcher):
    """Knows the states of this user's jobs by ``squeue``."""

    def _make_command(self) -> list[str] | None:
        if not self._registered - self._finished:
            return None
        # All of the user's: asked for one job alone that it has forgotten, squeue fails.
        return [
            "squeue",
            "--noheader",
            "--states=all",
            f"--user={os.getuid()}",
            "--format=%i|%T|%r",
        ]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """By job, ``State`` and the ``Reason`` why it waits or has ended."""
        text = string.decode() if isinstance(string, bytes) else string
        rows = [line.strip().split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
        listed = {job: {"State": state, "Reason": reason} for job, state, reason in rows}
        forgotten = {"State": FORGOTTEN, "Reason": ""}
        return {job: listed.get(job, forgotten) for job in self._registered - self._finished}

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether a job has ended, or been forgotten."""
        return self.get_state(job_id, mode=mode).upper() in _ENDED


class PointJob(SlurmJob[None]):
    """A job of ours."""

    watcher = QueueWatcher(delay_s=10)

    @property
    def _results_timeout_s(self) -> int:  # type: ignore[override]
        """How long to look for a task's result: one that was killed never leaves any."""
        return 15 if self.state in ("COMPLETED", FORGOTTEN) else 0


class PointExecutor(SlurmExecutor):
    """Writes and submits the job of one point.

    Parameters
    ----------
    settings
        What jobs ask for.
    point
        What the job measures.
    results
        Folder of the study's results, absolute.
    folder
        For the job's script and logs.
    """

    job_class = PointJob

    def __init__(self, settings: LaunchSettings, point: Point, results: Path, folder: Path) -> None:
        super().__init__(folder, python=settings.python)
        self._work = (run_rank, point.model_dump(mode="json"), str(results))
        asked = settings.resources(point)
        cores = asked["cpus_per_task"]
        self.update_parameters(
            job_name=f"shardinv-{point.system}-{point.size}-on-{point.ranks}",
            **{
                key: getattr(settings, key) for key in ("partition", "account", "qos", "constraint")
            },
            time=settings.time,
            mem=settings.memory,
            **asked,
            additional_parameters={
                **{name.replace("_", "-"): value for name, value in settings.sbatch.items()},
                # A job that a broken node has ended must not be measured on top of its own files.
                "no-requeue": True,
            },
            # No signal ahead of the limit: there is nothing that a point could save by then.
            signal_delay_s=0,
            # submitit's own key for accounting, which a cluster that has such keys refuses.
            wckey=None,
            stderr_to_stdout=True,
            # srun does not take the number of cores from sbatch any more (since 22.05).
            srun_args=["--kill-on-bad-exit=1", f"--cpus-per-task={cores}", *settings.srun],
            setup=[*settings.setup, *_environment(cores), _link(folder)],
        )

    @classmethod
    def affinity(cls) -> int:
        """Scripts can be written where there is no SLURM too."""
        return 2

    def script(self) -> str:
        """The text of the job's script."""
        return self._make_submission_file_text(self._submitit_command_str, "")

    def write(self) -> Path:
        """Write the script, for ``sbatch``, and what it needs."""
        self._dump()
        path = Path(self.folder) / "job.sh"
        path.write_text(self.script(), encoding="utf-8")
        return path

    def start(self) -> PointJob:
        """Submit the job."""
        self._dump()
        function, *arguments = self._work
        with _outside_of_jobs():
            job: Any = self.submit(function, *arguments)
        assert isinstance(job, PointJob)
        return job

    def _dump(self) -> None:
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        function, *arguments = self._work
        DelayedSubmission(function, *arguments).dump(Path(self.folder) / _WORK)


_WORK = "work.pkl"


def _link(folder: Path) -> str:
    """Names the work as submitit expects it, so that a script also runs by ``sbatch`` alone."""
    name = shlex.quote(str(folder)) + '/"${SLURM_JOB_ID}_submitted.pkl"'
    return f"ln -s {_WORK} {name} 2>/dev/null || true"


def _environment(threads: int) -> list[str]:
    defaults = process_defaults(threads)
    return [f'export {name}="${{{name}:-{value}}}"' for name, value in defaults.items()]


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Hide that this process is in a job itself, or started by ``torchrun``, from what it submits.

    Where SLURM's configuration is, and a user's defaults of ``sbatch``, are kept.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or name.startswith("SBATCH_")
    }
    with clean_env():
        os.environ.update(kept)
        yield
