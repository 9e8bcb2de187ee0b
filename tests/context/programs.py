"""The programs that ``test_ending`` starts, as text: each rank a process of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import shardinv

#: Imports the context alone: DeepInverse would double the time that each process takes to start.
_LEAN = f"""
import types
package = types.ModuleType("shardinv")
package.__path__ = [{str(Path(shardinv.__file__).parent)!r}]
sys.modules["shardinv"] = package
from shardinv.context import DistributedContext
from shardinv.exchange import TensorSpec, gather_tensors
"""

_START = """
import os, signal, sys, time
rank = int(next(os.environ[n] for n in NAMES if n in os.environ))
# Every rank's own streams, under torchrun too.
folder = sys.argv[1]
for number, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)

def say(what):
    print(what, time.time(), flush=True)
""".replace("NAMES", '("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")')

_WAIT = """
import torch
# Start together: how long torch takes to load is not what is measured.
open(f"{folder}/{rank}.here", "w").close()
while not all(os.path.exists(f"{folder}/{r}.here") for r in range(int(sys.argv[2]))):
    time.sleep(0.02)

def gather(ctx, numbers):
    x = torch.ones(numbers)
    gather_tensors(ctx.comm, [x], [[TensorSpec.of(x)]] * ctx.world_size)
"""


def program(body: str, lean: bool = True) -> str:
    """Return a whole program: the given lines after what all of them begin with."""
    full = (
        "from shardinv import DistributedContext\n"
        "from shardinv.exchange import TensorSpec, gather_tensors\n"
    )
    return _START + (_LEAN if lean else full) + _WAIT + textwrap.dedent(body)
