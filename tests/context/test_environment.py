"""What launchers say; every case a dictionary, no process."""

from __future__ import annotations

import pytest

from shardinv.context.environment import Launch, detect_launch, first_host

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "4242",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "MASTER_ADDR": "node1",
}
MPICH = {
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "4",
    "MASTER_ADDR": "node1",
}


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


@pytest.mark.parametrize(
    ("env", "launch"),
    [
        (TORCHRUN, Launch("torchrun", 5, 8, 1, 4, "node1", 4242)),
        (SRUN, Launch("srun", 5, 8, 1, 4, "gpu07", 24711)),
        (OPEN_MPI, Launch("Open MPI", 5, 8, 1, 4, "node1", 29500)),
        (MPICH, Launch("MPICH", 5, 8, 1, 4, "node1", 29500)),
        ({"HOME": "/home/someone"}, Launch("none")),
    ],
    ids=["torchrun", "srun", "Open MPI", "MPICH", "none"],
)
def test_launchers(env: dict[str, str], launch: Launch) -> None:
    assert detect_launch(env) == launch


def test_without_a_launcher_there_is_one_process() -> None:
    launch = detect_launch({})
    assert (launch.rank, launch.world_size, launch.local_rank, launch.local_world_size) == (
        0,
        1,
        0,
        1,
    )


def test_variables_of_torch_alone_are_enough() -> None:
    launch = detect_launch({"RANK": "1", "WORLD_SIZE": "2"})
    assert launch == Launch("torchrun", 1, 2, 1, 2, "127.0.0.1", 29500)


def test_batch_script_without_srun_is_one_process() -> None:
    batch = {
        "SLURM_JOB_ID": "4711",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "8",
        "SLURM_TASKS_PER_NODE": "4(x2)",
        "SLURM_NODELIST": "gpu[07-08]",
    }
    assert detect_launch(batch) == Launch("none")


def test_torchrun_inside_a_step_of_srun_wins() -> None:
    assert detect_launch(SRUN | {"SLURM_STEP_NUM_TASKS": "2"} | TORCHRUN).launcher == "torchrun"


def test_mpirun_inside_a_job_wins_over_the_srun_of_its_daemons() -> None:
    # One daemon a node, started by srun, hands its own variables on to four processes.
    daemon = SRUN | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    assert detect_launch(daemon | OPEN_MPI) == Launch("Open MPI", 5, 8, 1, 4, "node1", 29500)
    assert detect_launch(daemon | MPICH) == Launch("MPICH", 5, 8, 1, 4, "node1", 29500)


def test_srun_with_pmi_is_srun() -> None:
    # --mpi=pmi2 says the rank twice; SLURM knows the node and the local rank too.
    env = SRUN | {"PMI_RANK": "5", "PMI_SIZE": "8"}
    assert detect_launch(env) == detect_launch(SRUN)


def test_address_and_port_of_the_user_win() -> None:
    mine = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7777"}
    for env in (SRUN, OPEN_MPI, MPICH):
        launch = detect_launch(env | mine)
        assert (launch.master_addr, launch.master_port) == ("10.0.0.1", 7777)


def test_two_jobs_on_one_node_use_two_ports() -> None:
    ports = {detect_launch(SRUN | {"SLURM_JOB_ID": job}).master_port for job in ("4711", "4712")}
    assert len(ports) == 2
    assert all(1024 < port < 65536 for port in ports)
    assert detect_launch(SRUN | {"SLURM_JOB_ID": "99999999"}).master_port < 65536


@pytest.mark.parametrize("env", [OPEN_MPI, MPICH], ids=["Open MPI", "MPICH"])
def test_mpi_on_several_nodes_needs_an_address(env: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="set MASTER_ADDR to the host name of rank 0"):
        detect_launch(without(env, "MASTER_ADDR"))
    one_node = env | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "MPI_LOCALNRANKS": "8"}
    assert detect_launch(without(one_node, "MASTER_ADDR")).master_addr == "127.0.0.1"


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        (TORCHRUN, "RANK", None),
        (TORCHRUN, "WORLD_SIZE", None),
        (TORCHRUN, "RANK", "one"),
        (TORCHRUN, "WORLD_SIZE", ""),
        (TORCHRUN, "RANK", "-1"),
        (TORCHRUN, "LOCAL_RANK", "x"),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "2.5"),
        (TORCHRUN, "MASTER_PORT", "http"),
        (SRUN, "SLURM_PROCID", "first"),
        (SRUN, "SLURM_STEP_NUM_TASKS", "many"),
        (SRUN, "SLURM_LOCALID", None),
        (SRUN, "SLURM_JOB_ID", "4711_3"),
        (SRUN, "MASTER_PORT", "http"),
        (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", None),
        (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK", None),
        (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "4;4"),
        (MPICH, "PMI_SIZE", "x"),
        (MPICH, "MPI_LOCALRANKID", "x"),
    ],
)
def test_broken_variable_is_named(env: dict[str, str], name: str, value: str | None) -> None:
    broken = without(env, name) if value is None else env | {name: value}
    with pytest.raises(RuntimeError, match=rf"variable {name} is .* whole number"):
        detect_launch(broken)


@pytest.mark.parametrize(
    ("env", "rank", "size"),
    [
        (TORCHRUN, "RANK", "WORLD_SIZE"),
        (SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        (MPICH, "PMI_RANK", "PMI_SIZE"),
    ],
    ids=["torchrun", "srun", "Open MPI", "MPICH"],
)
def test_rank_outside_of_the_world_is_refused(env: dict[str, str], rank: str, size: str) -> None:
    launcher = detect_launch(env).launcher
    for broken in ({rank: "8"}, {size: "0"}):
        with pytest.raises(RuntimeError, match=f"{launcher} gives rank"):
            detect_launch(env | broken)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node3", "node3"),
        ("node3,node4", "node3"),
        ("gpu[07-09,12],login1", "gpu07"),
        ("gpu[12]", "gpu12"),
        ("n[1-3]-ib,other", "n1-ib"),
        ("rack[0-1]node[03-04]", "rack0node03"),
        ("a-b.example.org", "a-b.example.org"),
        ("", None),
    ],
)
def test_first_host_of_a_compact_list(nodes: str, first: str | None) -> None:
    assert first_host(nodes) == first
