"""A run over two hosts with addresses of their own: two network namespaces joined by a cable."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.context.programs import MESSAGES_BETWEEN_HOSTS, program
from tests.harness import launch_script
from tests.harness.worker import is_launcher_variable

PORT = 29577
SUMMED = 4 * 4 * 1024 * 1024
"""Bytes of the sum in the program."""


@dataclass(frozen=True)
class Host:
    """A network namespace with an address and one interface, apart from its loopback."""

    name: str
    address: str
    interface: str


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture
def two_hosts() -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        pytest.skip("no 'ip' command (iproute2) to make network namespaces with")
    # Names of this process alone: another run of the tests may be under way. An interface's name
    # has 15 characters at most.
    mark = f"si{os.getpid()}"
    hosts = tuple(
        Host(f"{mark}-{letter}", f"10.213.77.{number}", f"{mark}{letter}")
        for number, letter in ((1, "a"), (2, "b"))
    )
    made: list[str] = []
    try:
        try:
            for host in hosts:
                ip("netns", "add", host.name)
                made.append(host.name)
            one, other = hosts
            cable = ("link", "add", one.interface, "netns", one.name, "type", "veth")
            ip(*cable, "peer", "name", other.interface, "netns", other.name)
            for host in hosts:
                ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", host.interface)
                ip("-n", host.name, "link", "set", host.interface, "up")
                ip("-n", host.name, "link", "set", "lo", "up")
        except OSError as error:
            pytest.skip(f"network namespaces are not allowed here: {error}")
        yield (one, other)
    finally:
        for name in made:
            with contextlib.suppress(OSError, ProcessLookupError):
                for pid in ip("netns", "pids", name).split():
                    os.kill(int(pid), signal.SIGKILL)
            # The cable goes with either end.
            with contextlib.suppress(OSError):
                ip("netns", "delete", name)


ENTER_HOST = """
import ctypes, os, sys
# As `ip netns exec` does; this thread is the process's only one.
host, interface = sys.argv[3].split(",")[int(os.environ["RANK"])].split(":")
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(os.open(f"/run/netns/{host}", os.O_RDONLY), 0x40000000):  # CLONE_NEWNET
    raise OSError(ctypes.get_errno(), "setns")
sys.argv[3] = interface
"""


def run_alone(hosts: tuple[Host, Host], folder: Path) -> list[dict[str, Any]]:
    """Run the program as one rank on each host, which nobody watches; what each found."""
    places = ",".join(f"{host.name}:{host.interface}" for host in hosts)
    done = launch_script(
        ENTER_HOST + program(MESSAGES_BETWEEN_HOSTS),
        2,
        launcher="spawn",
        arguments=[str(folder), "2", places],
        env={
            "MASTER_ADDR": hosts[0].address,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GLOO_SOCKET_IFNAME": None,
        },
    )
    errors = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.err")))
    assert done.returncodes == (0, 0), done.stderr + errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def run_by_torchrun(hosts: tuple[Host, Host], folder: Path, per_host: int) -> list[dict[str, Any]]:
    """Run the program by ``torchrun`` on both hosts; what each rank found."""
    script = folder / "script.py"
    script.write_text(program(MESSAGES_BETWEEN_HOSTS))
    environment = {
        name: value for name, value in os.environ.items() if not is_launcher_variable(name)
    }
    environment.pop("GLOO_SOCKET_IFNAME", None)
    environment |= {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    processes = []
    for number, host in enumerate(hosts):
        command = ["ip", "netns", "exec", host.name, sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes=2", f"--nproc-per-node={per_host}", "--rdzv-backend=c10d"]
        # The name of this machine is that of both hosts: they are told their addresses.
        command += [f"--rdzv-endpoint={hosts[0].address}:{PORT}", f"--local-addr={host.address}"]
        command += [f"--rdzv-conf=is_host={int(number == 0)}", "--rdzv-id=two-hosts"]
        command += [str(script), str(folder), str(2 * per_host), host.interface]
        with (folder / f"{host.name}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    deadline = time.monotonic() + 240
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if any(process.poll() for process in processes):
            deadline = min(deadline, time.monotonic() + 30)
        time.sleep(0.1)
    late = [process for process in processes if process.poll() is None]
    for process in late:
        process.kill()
    for process in processes:
        process.wait()
    logs = "".join(
        f"--- {path.name} ---\n{path.read_text(errors='replace')}"
        for path in sorted([*folder.glob("*.log"), *folder.glob("*.err")])
    )
    assert not late, f"did not end\n{logs}"
    assert [process.returncode for process in processes] == [0, 0], logs
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2 * per_host)]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("per_host", [1, 2])
def test_two_hosts(two_hosts: tuple[Host, Host], tmp_path: Path, per_host: int) -> None:
    if per_host == 1:
        found = run_alone(two_hosts, tmp_path)
    else:
        found = run_by_torchrun(two_hosts, tmp_path, per_host)
    size = 2 * per_host
    ranks = range(size)
    hosts = [rank // per_host for rank in ranks]
    for rank, facts in enumerate(found):
        assert facts["hosts"] == hosts
        # Set where gloo's own choice, the address of the machine's name, would not do.
        assert facts["interface"] in (None, two_hosts[hosts[rank]].interface)
        assert facts["right"]
        assert facts["total"] == [size * (size + 1) / 2] * 2
        assert facts["summing"][1] == pytest.approx(2 * (size - 1) * SUMMED / size, abs=4)
        assert sum(entry["calls"] for entry in facts["table"] if entry["operation"] == "halo") == 1
    for host in (0, 1):
        mine = [facts for rank, facts in enumerate(found) if hosts[rank] == host]
        # Every rank sums a slice: half of all slices go over the cable, and their sums come back.
        crossing = per_host * 2 * per_host * SUMMED / size
        assert framed(mine[0]["summing"][0], crossing)
        # A halo goes to neighbours on the other host alone: the rest stays off the cable.
        assert framed(mine[0]["fetching"][0], sum(facts["outside"] for facts in mine))
        if per_host == 1:
            assert mine[0]["fetching"][1] == mine[0]["outside"]
        else:
            assert sum(facts["fetching"][1] for facts in mine) > sum(f["outside"] for f in mine)


def framed(counted: int, sent: float) -> bool:
    """Whether an interface's count is that of the bytes sent, with headers and small talk.

    On a busy machine TCP sends segments again (11 % of them were seen), so the bound above only
    tells bytes sent once from bytes sent twice.
    """
    assert sent <= counted <= 1.5 * sent + 128 * 1024, f"{counted} bytes counted, {sent} sent"
    return True
