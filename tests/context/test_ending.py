"""Real processes that end: well, on an exception, on a kill, on a rank that never comes.

Times are measured from the moment that something goes wrong, which the programs print: how long
Python and torch take to start says nothing about this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.context.programs import program
from tests.harness import LaunchResult, launch_script
from tests.harness.launch import Launcher

SECONDS = 15.0
"""Within which all ranks must have ended: a look every half second, then five seconds of grace."""


@dataclass
class Ended:
    """How a program of several ranks ended, each rank's streams apart."""

    launch: LaunchResult
    out: list[str]
    err: list[str]

    def time_of(self, what: str) -> float:
        """When some rank said ``what``."""
        (line,) = [line for text in self.out for line in text.splitlines() if what in line]
        return float(line.split()[-1])

    @property
    def last_end(self) -> float:
        return max(self.launch.ended_at)

    def describe(self) -> str:
        lines = [f"exit codes {self.launch.returncodes} after {self.launch.seconds:.1f} s"]
        for rank, (out, err) in enumerate(zip(self.out, self.err, strict=True)):
            lines += [f"--- rank {rank} ---", out, err]
        return "\n".join([*lines, "--- launcher ---", self.launch.stderr])


FAIL = """
fail, how = {fail}, {how!r}
with DistributedContext(device_mode="cpu") as ctx:
    ctx.barrier()
    if rank == fail:
        say("failing")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            sys.exit(3)
        raise ValueError("broke on purpose")
    if rank == 2:
        say("sleeping")
        time.sleep(60)
        say("woke")
    gather(ctx, 1_000_000)
    say("came through")
"""


NEVER_COMES = """
with DistributedContext(device_mode="cpu") as ctx:
    assert ctx.timeout.total_seconds() == 5
    if rank == 0:
        say("failing")
        gather(ctx, 1_000_000)
    time.sleep(60)
    say("woke")
"""

DESERTED = """
with DistributedContext(device_mode="cpu") as ctx:
    if rank == 0:
        say("failing")
        gather(ctx, 1_000_000)
"""

CLEAN = """
for number in (1, 2):  # a second context in one process starts a group anew
    with DistributedContext(device_mode="cpu", seed=number) as ctx:
        assert ctx.backend == "gloo", ctx
        total = ctx.all_reduce(torch.tensor(float(ctx.rank + 1)))
        assert ctx.all_reduce(torch.ones(100_000)).unique().tolist() == [2.0]
        assert ctx.broadcast_object(f"{number}, {ctx.rank}", 1) == f"{number}, 1"
        say(f"rank {ctx.rank} of {ctx.world_size}, local {ctx.local_rank}, sum {total:.0f},")
        if number == 2 and LEAVE == "by exit":
            sys.exit(0)
    assert not torch.distributed.is_initialized()
"""


@dataclass(frozen=True)
class Scenario:
    """A program and how it is started."""

    body: str
    nproc: int
    launcher: Launcher
    lean: bool = True
    timeout: str | None = None

    def run(self, folder: Path) -> Ended:
        result = launch_script(
            program(self.body, self.lean),
            self.nproc,
            launcher=self.launcher,
            arguments=[str(folder), str(self.nproc)],
            timeout=150,
            env={"SHARDINV_TIMEOUT": self.timeout},
            fresh=not self.lean,
        )
        streams = [
            [(folder / f"{rank}.{name}").read_text() for rank in range(self.nproc)]
            for name in ("out", "err")
        ]
        return Ended(result, *streams)


def failing(fail: int, how: str, nproc: int, launcher: Launcher) -> Scenario:
    return Scenario(FAIL.format(fail=fail, how=how), nproc, launcher)


# A third rank sleeps: it is in no collective that could break.
SCENARIOS = {
    "torchrun, rank 0 raises": failing(0, "raise", 2, "torchrun"),
    "torchrun, rank 1 raises": failing(1, "raise", 2, "torchrun"),
    "alone, rank 0 raises": failing(0, "raise", 3, "spawn"),
    "alone, rank 1 raises": failing(1, "raise", 3, "spawn"),
    "rank 0 is killed": failing(0, "kill", 3, "spawn"),
    "rank 1 is killed": failing(1, "kill", 3, "spawn"),
    "rank 1 exits with 3": failing(1, "exit", 2, "mpi-env"),
    "rank 1 never comes": Scenario(NEVER_COMES, 2, "spawn", timeout="5"),
    "rank 1 has left": Scenario(DESERTED, 2, "spawn"),
    "torchrun, all goes well": Scenario(f"LEAVE = 'at the end'\n{CLEAN}", 2, "torchrun"),
    "srun, all exit with 0": Scenario(f"LEAVE = 'by exit'\n{CLEAN}", 2, "slurm-env"),
    # One of them is started, and imports the package, as users do.
    "mpirun, all goes well": Scenario(f"LEAVE = 'at the end'\n{CLEAN}", 2, "mpi-env", lean=False),
}


@pytest.fixture(scope="module")
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Ended]]:
    """Start the scenarios of all selected tests, four at a time: most of each is waiting."""
    wanted = [
        item.callspec.params["scenario"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(4) as executor:
        futures: dict[str, Future[Ended]] = {
            name: executor.submit(SCENARIOS[name].run, tmp_path_factory.mktemp("ranks"))
            for name in wanted
        }
        yield lambda name: futures[name].result()
        for future in futures.values():
            future.cancel()


def assert_all_ended_soon(ended: Ended, failed: int, cause: str) -> None:
    """Every rank has failed, soon, and has said why."""
    description = ended.describe()
    assert ended.last_end - ended.time_of("failing") < SECONDS, description
    assert all(code != 0 for code in ended.launch.returncodes), description
    assert "came through" not in "".join(ended.out), description
    assert "woke" not in "".join(ended.out), description
    for rank, err in enumerate(ended.err):
        assert cause in err, f"rank {rank} does not say {cause!r}\n{description}"
        if rank != failed:
            assert f"rank {failed} failed:" in err, description
            assert "Traceback (most recent call last)" in err, description
            assert "in <module>" in err, description


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name.endswith("raises")])
def test_exception_ends_every_rank(run: Callable[[str], Ended], scenario: str) -> None:
    ended = run(scenario)
    assert_all_ended_soon(ended, int("rank 1" in scenario), "ValueError: broke on purpose")
    if len(ended.err) > 2:
        assert "rank 2 ends because" in ended.err[2], ended.describe()


@pytest.mark.parametrize("scenario", ["rank 1 exits with 3"])
def test_nonzero_exit_ends_every_rank_too(run: Callable[[str], Ended], scenario: str) -> None:
    ended = run(scenario)
    assert ended.launch.returncodes[1] == 3
    assert ended.launch.returncodes[0] != 0
    assert "SystemExit: 3" in ended.err[0], ended.describe()
    assert ended.last_end - ended.time_of("failing") < SECONDS, ended.describe()


@pytest.mark.parametrize("scenario", ["rank 0 is killed", "rank 1 is killed"])
def test_killed_rank_takes_the_others_with_it(run: Callable[[str], Ended], scenario: str) -> None:
    ended, killed = run(scenario), int("rank 1" in scenario)
    description = ended.describe()
    assert ended.launch.returncodes[killed] == -9
    assert all(code != 0 for code in ended.launch.returncodes), description
    # Nobody told them: five seconds are spent on waiting for a message that does not come.
    assert ended.last_end - ended.time_of("failing") < SECONDS + 5, description
    for rank in {0, 1, 2} - {killed}:
        assert "RankError" in ended.err[rank] or "ends because" in ended.err[rank], description


@pytest.mark.parametrize("scenario", ["rank 1 has left"])
def test_rank_that_others_have_left_ends_them(run: Callable[[str], Ended], scenario: str) -> None:
    """As a rank that alone calls ``backward``: long before the time-out of five minutes."""
    ended = run(scenario)
    description = ended.describe()
    assert ended.last_end - ended.time_of("failing") < 10 + SECONDS, description
    assert all(code != 0 for code in ended.launch.returncodes), description
    for err in ended.err:
        assert "1 of 2 ranks came to the end of the program without it" in err, description


@pytest.mark.parametrize("scenario", ["rank 1 never comes"])
def test_rank_that_never_comes_is_given_up_after_the_timeout(
    run: Callable[[str], Ended], scenario: str
) -> None:
    ended = run(scenario)
    description = ended.describe()
    began = ended.time_of("failing")
    # After the time-out, five seconds for a reason that may come, three for the others to end.
    assert 4 < ended.launch.ended_at[0] - began < 5 + SECONDS, description
    assert "did not answer within 5 s" in ended.err[0], description
    assert all(code != 0 for code in ended.launch.returncodes), description
    assert "woke" not in "".join(ended.out), description
    assert ended.last_end - began < 5 + SECONDS, description


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if ", all " in name])
def test_everything_ends_well(run: Callable[[str], Ended], scenario: str) -> None:
    ended = run(scenario)
    assert ended.launch.returncode == 0, ended.describe()
    for rank in range(2):
        said = ended.out[rank].splitlines()
        assert len(said) == 2, ended.describe()
        assert all(f"rank {rank} of 2, local {rank}, sum 3," in line for line in said)
        assert "Traceback" not in ended.err[rank], ended.describe()
        assert "shardinv:" not in ended.err[rank], ended.describe()
