"""What a study was, beside its results: the configuration, and each command that measured."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardinv.cli.versions import versions
from shardinv.io import write_json
from shardinv.study.checkout import checkout
from shardinv.study.plan.grids import Study


def record_run(folder: Path, plan: Study, *, measures: bool) -> None:
    """Write ``study.json``: the plan as it is now, and this run after those before.

    Parameters
    ----------
    folder
        Of the results.
    plan
        What is measured.
    measures
        Whether anything is left to measure: a run that measures nothing is no origin of a result.
    """
    file = folder / "study.json"
    runs = [*_runs(file), *([_this_run()] if measures else [])]
    write_json(file, {"study": plan.model_dump(mode="json"), "runs": runs})


def _this_run() -> dict[str, Any]:
    source = checkout()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "checkout": None if source is None else vars(source),
        "versions": versions(),
    }


def _runs(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    return list(json.loads(file.read_text(encoding="utf-8")).get("runs", []))
