"""The one process that imports everything and that all workers are forked from.

It is multiprocessing's own fork server; here it gets its imports and its environment.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver

#: Imported once, before the first fork; shardinv too where it can be. DeepInverse imports the last
#: two at their first use, which would be in every worker.
PRELOADED = (
    "torch",
    "torch.distributed.checkpoint",
    "numpy",
    "pytest",
    "deepinv",
    "torchmetrics",
    "ptwt",
)


def start_server() -> None:
    """Start the process that workers are forked from, unless it runs already."""
    preloaded = list(PRELOADED)
    # The server forgives a missing module but not a broken one, and dies without a word.
    with contextlib.suppress(Exception):
        importlib.import_module("shardinv")
        preloaded.append("shardinv")
    multiprocessing.set_forkserver_preload(preloaded)
    with _environment(
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        # No GPU: the pool is for gloo, and a forked process couldn't use CUDA any more.
        CUDA_VISIBLE_DEVICES="",
        # Host names don't always resolve to an address that answers.
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    ):
        forkserver.ensure_running()


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
