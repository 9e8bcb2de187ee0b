"""Programs forked from a process that has imported shardinv, and so torch and DeepInverse, already.

A fresh interpreter takes seconds of processor time to import them. A forked program is given its
own environment, arguments, streams and session, runs as ``__main__``, and then ends as any program
of Python does: with its traceback, its exit functions and its exit code.

Two halves: :class:`Preloaded` is used by ``launch``; the rest runs in the process that it starts,
by ``python prefork.py MODULE...``.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Preloaded:
    """The process that programs are forked from, started at the first need.

    Parameters
    ----------
    *modules : str
        What it imports.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._connection: Any = None

    def fork(
        self,
        script: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        out: Path,
        err: Path,
        cwd: Path | None = None,
    ) -> Forked:
        """Run a program in a session of its own, without input."""
        order = {
            "script": str(script),
            "arguments": list(arguments),
            "environment": dict(environment),
            "streams": [str(out), str(err)],
            "cwd": str(cwd or Path.cwd()),
        }
        return Forked(self, self.ask(order))

    def ask(self, order: Any) -> Any:
        with self._lock:
            if self._connection is None:
                self._start()
            print(json.dumps(order), file=self._connection, flush=True)
            return json.loads(self._connection.readline())

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # Not our environment's: each program gets its own, and those of torch are read here.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *self._modules],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._connection = ours.makefile("rw")

        def end() -> None:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            process.wait()

        atexit.register(end)


class Forked:
    """A forked program, with what ``launch`` needs of ``subprocess.Popen``."""

    def __init__(self, server: Preloaded, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = self._server.ask({"wait": self.pid})
        assert self.returncode is not None
        return self.returncode


SHARDINV = Preloaded("shardinv", "torch.distributed.checkpoint")


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Answer orders; returns in a forked process only, with its order."""
    stream = connection.makefile("rw")
    while line := stream.readline():
        order = json.loads(line)
        if "script" in order:
            answer: int | None = os.fork()
            if answer == 0:
                return dict(order)
        else:
            pid, flags = order.get("poll"), os.WNOHANG
            if pid is None:
                pid, flags = order["wait"], 0
            ended, status = os.waitpid(pid, flags)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        print(json.dumps(answer), file=stream, flush=True)
    os._exit(0)


def _become(order: dict[str, Any]) -> dict[str, Any]:
    """Take on a program's place; returns the names that it runs with."""
    os.setsid()
    # A shell that runs the tests in the background has had Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(order["streams"], start=1):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    sys.argv = [order["script"], *order["arguments"]]
    sys.path[0] = os.path.dirname(order["script"])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    module = types.ModuleType("__main__")
    module.__file__ = order["script"]
    sys.modules["__main__"] = module
    return vars(module)


if __name__ == "__main__":
    _connection = socket.socket(fileno=int(sys.argv[1]))
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    # Or the end of each program would go through every object of those modules, and copy its page.
    gc.freeze()
    _order = _serve(_connection)
    _connection.close()
    _names = _become(_order)
    # At the top level, not in a function: an exception and the interpreter's end are the program's.
    exec(compile(Path(_order["script"]).read_bytes(), _order["script"], "exec"), _names)
