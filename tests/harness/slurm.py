"""A SLURM cluster of one node, this machine, for tests that submit real jobs.

It has its own key, ports and folders, and touches nothing of a cluster that may be installed.
Debian's packages are ``slurm-wlm`` and ``munge``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.harness.launch import free_port

_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "sinfo", "scancel")
_SYSTEM = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_MUNGE = ("key-file", "socket", "pid-file", "log-file", "seed-file")
# More than there may be: two jobs of two tasks fit, whatever the machine has.
_CPUS = 8
_CONF = """
ClusterName=shardinv-test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    """Why a cluster can't be started here, or None if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "SLURM's and munge's daemons are started as root, which this is not"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_SYSTEM) is None]
    return f"not installed: {', '.join(missing)} (slurm-wlm, munge)" if missing else None


@contextlib.contextmanager
def slurm_cluster() -> Iterator[Path]:
    """Run a cluster; gives its configuration file, for the variable ``SLURM_CONF``.

    Raises
    ------
    AssertionError
        With the daemons' words if the node does not come up, or if something of the cluster was
        still running after its end (it is killed then).
    """
    # Short: the name of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    conf = folder / "slurm.conf"
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _configure(folder, conf)
        munge = [f"--{name}={folder}/munge.{name}" for name in _MUNGE]
        daemons.append(_start(conf, "munged", "--foreground", "--force", "--num-threads=2", *munge))
        _until(lambda: (folder / "munge.socket").exists(), daemons, folder, 10)
        daemons.append(_start(conf, "slurmctld", "-D", "-c"))
        daemons.append(_start(conf, "slurmd", "-D"))
        _until(lambda: "idle" in _ask(conf, "sinfo", "-h", "-o", "%T"), daemons, folder, 30)
        yield conf
    finally:
        left = _stop(conf, daemons)
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"these processes outlived their cluster: {left}"


def _configure(folder: Path, conf: Path) -> None:
    folder.chmod(0o755)  # munge refuses a socket in a folder that others can't enter
    (folder / "munge.key-file").write_bytes(os.urandom(1024))
    (folder / "munge.key-file").chmod(0o600)
    for name in ("state", "spool"):
        (folder / name).mkdir(mode=0o755)
    conf.write_text(
        _CONF.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            controller=free_port(),
            node=free_port(),
            cpus=_CPUS,
        )
    )


def _start(conf: Path, *command: str) -> subprocess.Popen[bytes]:
    path = shutil.which(command[0], path=_SYSTEM)
    assert path is not None
    # Ends with this process, should that be killed.
    guard = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    with (conf.parent / f"{command[0]}.out").open("wb") as out:
        return subprocess.Popen(
            [*guard, path, *command[1:]],
            env=_environment(conf),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to us alone, and we tidy up
        )


def _environment(conf: Path) -> dict[str, str]:
    return {**os.environ, "SLURM_CONF": str(conf)}


def _ask(conf: Path, *command: str) -> str:
    answer = subprocess.run(
        command, env=_environment(conf), capture_output=True, text=True, timeout=30, check=False
    )
    return answer.stdout.strip()


def _until(
    ready: Callable[[], bool],
    daemons: list[subprocess.Popen[bytes]],
    folder: Path,
    seconds: float,
) -> None:
    until = time.monotonic() + seconds
    while not ready():
        dead = [daemon.args for daemon in daemons if daemon.poll() is not None]
        if dead or time.monotonic() > until:
            words = [f"--- {log}\n{log.read_text()}" for log in sorted(folder.glob("*.out"))]
            raise AssertionError(f"SLURM did not start; ended: {dead}\n" + "\n".join(words))
        time.sleep(0.1)


def _stop(conf: Path, daemons: list[subprocess.Popen[bytes]]) -> list[int]:
    """End all jobs, then the daemons; returns what was still there, and has been killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if len(daemons) == 3:
            _ask(conf, "scancel", "--user=root")
            until = time.monotonic() + 15
            while _ask(conf, "squeue", "-h") and time.monotonic() < until:
                time.sleep(0.2)
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    until = time.monotonic() + 5
    while (left := _processes(conf)) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _processes(conf: Path) -> list[int]:
    """Whatever has this cluster in its environment, but this process and what it starts itself."""
    word = f"SLURM_CONF={conf}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]
