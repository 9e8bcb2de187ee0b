"""Runs one measurement: a module in fresh processes, one a rank, on this machine."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_ranks(module: str, folder: Path, ranks: int, timeout: float) -> list[dict[str, Any]] | str:
    """Run ``python -m module folder`` on every rank.

    Each rank is expected to leave ``rank0.json``, ``rank1.json``, ... in the folder.

    Returns
    -------
    list of dict, or str
        What the ranks left, or why there is nothing.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    port = _free_port()
    processes = []
    try:
        for rank in range(ranks):
            own = dict(environment)
            if ranks > 1:
                own |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with (folder / f"log{rank}.txt").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", module, str(folder)],
                        cwd=ROOT, env=own, stdout=log, stderr=log,
                    )
                )  # fmt: skip
        deadline = time.monotonic() + timeout
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"no result in {timeout:.0f} s"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode:
            lines = (folder / f"log{rank}.txt").read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else f"rank {rank} ended with {process.returncode}"
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: version(package) for package in ("shardinv", "deepinv", "torch")},
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
