"""The programs that ``test_ending`` and ``test_two_hosts`` start, a process for each rank."""

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


#: On several hosts: what each operation sends between them, by the interface and by the ledger.
MESSAGES_BETWEEN_HOSTS = """
import json
from shardinv.exchange import all_reduce, fetch, host_of_ranks
from shardinv.geometry import Box, Partition, choose_mesh, place_ranks, plan_transfers

interface = sys.argv[3]
SUMMED, SHAPE, HALO, CHANNELS = 4 * 1024 * 1024, (1024, 1024), 64, 3

def sent_by_host():
    with open("/proc/self/net/dev") as counters:
        for line in counters:
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                return int(numbers.split()[8])
    raise LookupError(f"no interface {interface}")

def measured(call):
    # Counters are read between barriers, whose few bytes are framing to us.
    call()
    ctx.barrier()
    ctx.ledger.reset()
    before = sent_by_host()
    ctx.barrier()
    result = call()
    ctx.barrier()
    return result, sent_by_host() - before, ctx.ledger.bytes_sent

with DistributedContext(device_mode="cpu", timeout=60) as ctx:
    comm = ctx.comm
    hosts = host_of_ranks(comm)
    total, *summing = measured(
        lambda: all_reduce(comm, torch.full((SUMMED,), float(rank + 1)))[[0, -1]].tolist()
    )
    mesh = choose_mesh(SHAPE, comm.size, (HALO, HALO), hosts)
    order = place_ranks(mesh, hosts, SHAPE, (HALO, HALO))
    part = Partition.split(SHAPE, mesh, order=order)
    windows = part.windows((HALO, HALO))
    plan = plan_transfers(
        tuple((box,) for box in part.boxes), tuple((window,) for window in windows)
    )
    image = torch.rand(CHANNELS, *SHAPE, generator=torch.Generator().manual_seed(0))
    piece = image[(..., *part.boxes[rank].slices())].contiguous()
    spec = TensorSpec((CHANNELS,), torch.float32)
    token = torch.zeros(())
    (window, *_), *fetching = measured(
        lambda: fetch(comm, [piece], plan, spec, token, "halo")[0]
    )
    outside = sum(
        4 * CHANNELS * t.source_box.size
        for t in plan.transfers
        if t.source_rank == rank and hosts[t.target_rank] != hosts[rank]
    )
    facts = {
        "hosts": hosts,
        "mesh": mesh,
        "order": order,
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "total": total,
        "summing": summing,
        "right": bool(torch.equal(window, image[(..., *windows[rank].slices())])),
        "fetching": fetching,
        "outside": outside,
        "table": ctx.ledger.table(),
    }
with open(f"{folder}/{rank}.json", "w") as answer:
    json.dump(facts, answer)
"""
