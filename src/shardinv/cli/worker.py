"""One rank of a command: ``python -m shardinv.cli.worker``, started by `shardinv.cli.launch`.

Its order is the first line of standard input. The end of standard input means that the process that
started it is gone, and ends it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardinv.cli.check.ranks import Order as CheckOrder
from shardinv.cli.check.ranks import check_on_rank
from shardinv.cli.demo import DemoSettings, run_demo
from shardinv.cli.failures import failure_report
from shardinv.cli.study.point import Order, run_point
from shardinv.cli.train import TrainSettings, run_train

COMMANDS: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
    "demo": (DemoSettings, run_demo),
    "train": (TrainSettings, run_train),
    "study-point": (Order, run_point),
    "check": (CheckOrder, check_on_rank),
}


def main() -> int:
    """Read the order, carry it out, and report a failure; returns the exit status."""
    # Unbuffered: a thread that waits inside a buffered reader holds up the interpreter's end.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        order = json.loads(stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings, run = COMMANDS[order["command"]]
    try:
        run(settings(**order["settings"]))
    except Exception as error:
        report = failure_report(error, int(os.environ["RANK"]))
        Path(order["report"]).write_text(json.dumps(report))
        return 1
    return 0


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
