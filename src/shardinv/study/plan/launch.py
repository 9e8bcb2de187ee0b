"""Where a study's points run: as processes of this machine, or as jobs of a SLURM cluster.

Settings only: who reads them and starts processes is the command line.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from shardinv.study.plan.point import Point

Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]

# Parameters of sbatch that are worked out from a point, or have a key of their own.
_OWN = {
    "account": "account",
    "array": None,
    "constraint": "constraint",
    "cpus-per-task": "cpus_per_task",
    "error": None,
    "gpus-per-node": "gpus_per_node",
    "job-name": None,
    "mem": "memory",
    "nodes": "nodes",
    "ntasks": None,
    "ntasks-per-node": "ranks_per_node",
    "open-mode": None,
    "output": None,
    "partition": "partition",
    "qos": "qos",
    "requeue": None,
    "signal": None,
    "time": "time",
}


class LaunchSettings(BaseModel):
    """How each point is started. All keys but ``how`` are for SLURM."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    how: Literal["local", "slurm"] = Field(
        default="local",
        description="As processes of this machine, one point after the other, or as jobs.",
    )
    partition: Words | None = Field(default=None, description="Default: the cluster's.")
    account: Words | None = Field(default=None, description="Who is charged.")
    qos: Words | None = Field(default=None, description="Quality of service.")
    constraint: Words | None = Field(default=None, description="Features that nodes must have.")
    time: int = Field(default=60, ge=1, description="Limit of a point, in minutes.")
    nodes: int | None = Field(
        default=None, ge=1, description="Of every job; default: as few as ranks_per_node allows."
    )
    ranks_per_node: int | None = Field(
        default=None,
        ge=1,
        description="At most; default: gpus_per_node, or all ranks on a node of CPUs.",
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        description="That a node has; a job with fewer ranks on it asks for fewer.",
    )
    cpus_per_task: int | None = Field(
        default=None, ge=1, description="Cores of a rank; default: the point's threads."
    )
    memory: str | None = Field(
        default=None,
        pattern=r"^\d+[KMGT]?$",
        description="Of a node, as SLURM writes it: 64G; 0 for all. Default: the cluster's.",
    )
    max_jobs: int | None = Field(
        default=None, ge=1, description="Most jobs in the queue at the same time; default: all."
    )
    setup: list[str] = Field(
        default=[], description="Lines of the job's script before it starts: module load ..."
    )
    python: Words | None = Field(
        default=None, description="Command that starts Python in a job, in a container for example."
    )
    sbatch: dict[str, str | int | bool] = Field(
        default={}, description="Further parameters of sbatch: {reservation: mine, exclusive: true}"
    )
    srun: list[str] = Field(default=[], description="Further arguments of srun: [--cpu-bind=cores]")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.nodes is not None and self.ranks_per_node is not None:
            raise ValueError("nodes and ranks_per_node say the same twice: give one of them")
        for name, value in self.sbatch.items():
            bare = name.replace("_", "-").lstrip("-")
            if bare in _OWN:
                key = _OWN[bare]
                advice = f"use the key {key}" if key else "it is worked out from each point"
                raise ValueError(f"sbatch can't have {name}: {advice}")
            if bare != name.replace("_", "-"):
                raise ValueError(f"sbatch has {name}: write {bare}, without the dashes")
            if value is False:
                raise ValueError(f"sbatch has {name}: false; leave it out")
        return self

    def resources(self, point: Point) -> dict[str, Any]:
        """What a point's job asks for.

        Parameters
        ----------
        point
            Which.

        Returns
        -------
        dict
            ``nodes``, ``ntasks_per_node``, ``cpus_per_task`` and, on a GPU, ``gpus_per_node``. All
            nodes have the same number of ranks: 6 ranks at 4 GPUs a node are 2 nodes with 3 each.

        Raises
        ------
        ValueError
            If ranks do not divide by ``nodes``, or the point needs GPUs and none are asked for.
        """
        gpu = point.device == "gpu"
        if gpu and self.gpus_per_node is None and not _asks_for_gpus(self.sbatch):
            raise ValueError(
                "a point with device gpu needs launch.gpus_per_node: how many GPUs a node has"
            )
        gpus = self.gpus_per_node if gpu else None
        if self.nodes is not None:
            if point.ranks % self.nodes:
                raise ValueError(
                    f"{point.ranks} ranks do not divide evenly over launch.nodes: {self.nodes}; "
                    "leave nodes out and give ranks_per_node"
                )
            nodes = self.nodes
        else:
            most = self.ranks_per_node or gpus or point.ranks
            nodes = next(
                count
                for count in range(1, point.ranks + 1)
                if point.ranks % count == 0 and point.ranks // count <= most
            )
        tasks = point.ranks // nodes
        return {
            "nodes": nodes,
            "ntasks_per_node": tasks,
            "cpus_per_task": self.cpus_per_task or point.threads,
            **({} if gpus is None else {"gpus_per_node": min(gpus, tasks)}),
        }


def _asks_for_gpus(sbatch: dict[str, Any]) -> bool:
    return any(name.replace("_", "-").startswith(("gres", "gpus")) for name in sbatch)
