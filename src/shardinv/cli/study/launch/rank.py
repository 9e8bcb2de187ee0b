"""What every task of a point's SLURM job does; submitit calls it in a fresh process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardinv.cli.failures import failure_report
from shardinv.cli.study.point import run_point
from shardinv.cli.study.results import Results
from shardinv.context.environment import detect_launch
from shardinv.io import write_json
from shardinv.study.plan.point import Point

# srun ends a job as soon as one of its tasks has failed. A rank that has only heard of another's
# failure waits this long, so that the other can say what it was.
_GRACE_SECONDS = 5.0


def run_rank(point: dict[str, Any], folder: str) -> None:
    """Measure a point on this rank.

    Parameters
    ----------
    point
        The settings of a `Point`.
    folder
        Of the study's results.
    """
    _end_when_told()
    launch = detect_launch(os.environ)
    results = Results(Path(folder))
    wanted = Point(**point)
    if wanted.system != "shardinv":
        # The peer knows torchrun's variables only.
        names = (
            "rank",
            "world_size",
            "local_rank",
            "local_world_size",
            "master_addr",
            "master_port",
        )
        said = asdict(launch)
        os.environ |= {name.upper(): str(said[name]) for name in names}
    try:
        _check(wanted, launch.world_size)
        run_point(results.order(wanted))
    except Exception as error:
        report = failure_report(error, launch.rank)
        job = os.environ.get("SLURM_JOB_ID", "0")
        write_json(report_file(job_folder(results, wanted), job, launch.rank), report)
        if report["follows"]:
            time.sleep(_GRACE_SECONDS)
        raise


def job_folder(results: Results, point: Point) -> Path:
    """Where a point's scripts and logs are."""
    return results.folder / "jobs" / point.key


def report_file(folder: Path, job: str, rank: int | str) -> Path:
    """Of why a rank of a job failed; a rank ``"*"`` makes a pattern for all."""
    return folder / f"{job}_{rank}_failure.json"


def _end_when_told() -> None:
    """Let a cancelled job end at once: submitit has its processes ignore the signal."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)


def _check(point: Point, ranks: int) -> None:
    if ranks != point.ranks:
        raise RuntimeError(
            f"srun started {ranks} tasks for a point of {point.ranks} ranks: does a line of "
            "launch.srun or launch.sbatch change the number of tasks?"
        )
