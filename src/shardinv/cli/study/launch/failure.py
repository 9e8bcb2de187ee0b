"""Why a point's SLURM job failed, from what its ranks, its log and SLURM say."""

from __future__ import annotations

import json
from pathlib import Path

from shardinv.cli.failures import first_cause
from shardinv.cli.study.launch.executor import PointJob
from shardinv.cli.study.launch.rank import report_file

_LINES = 40
_ADVICE = {
    "TIMEOUT": "it took longer than launch.time",
    "DEADLINE": "it would have missed its deadline",
    "OUT_OF_MEMORY": "ask for more launch.memory, or take a smaller size or tile",
    "CANCELLED": "someone cancelled it, or a limit of the cluster was reached",
    "NODE_FAIL": "a node broke down; run the study again",
}


def why(job: PointJob, folder: Path) -> tuple[str, str]:
    """One line that says why a job failed, and all that is known.

    Parameters
    ----------
    job
        That has ended.
    folder
        Of its logs.
    """
    told = job.get_info(mode="force")
    state = told.get("State", "UNKNOWN")
    name = f"SLURM job {job.job_id}"
    reports = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in folder.glob(report_file(folder, job.job_id, "*").name)
    ]
    cause = first_cause(reports) or next(iter(reports), None)
    rank = 0
    details: list[str] = []
    if cause is not None:
        rank = cause["rank"]
        line = f"rank {rank}: {cause['message']} ({name})"
        details.append(cause["traceback"])
    else:
        advice = _ADVICE.get(state, "no rank could say why: see the end of its log")
        line = f"{name} ended with {state}: {advice}"
    logs = {job.task(number).paths.stdout for number in {0, rank if rank < job.num_tasks else 0}}
    details += [_end(log) for log in sorted(logs)]
    return line, "\n".join([line, "", *details])


def _end(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return f"There is no log {log}: did the job start, and does its node see this folder?"
    head = f"--- {log}" + (f", the last {_LINES} lines" if len(lines) > _LINES else "")
    return "\n".join([head, *lines[-_LINES:], ""])
