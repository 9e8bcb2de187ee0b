"""What a point's job asks for, and settings that make no sense."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shardinv.study.plan.grids import Study
from shardinv.study.plan.launch import LaunchSettings
from shardinv.study.plan.point import Point

GPU = {"device": "gpu"}


@pytest.mark.parametrize(
    ("launch", "point", "nodes", "tasks", "gpus"),
    [
        ({}, {"ranks": 6}, 1, 6, None),
        ({"ranks_per_node": 4}, {"ranks": 8}, 2, 4, None),
        ({"ranks_per_node": 4}, {"ranks": 6}, 2, 3, None),
        ({"ranks_per_node": 4}, {"ranks": 5}, 5, 1, None),
        ({"nodes": 2}, {"ranks": 2}, 2, 1, None),
        ({"gpus_per_node": 4}, {"ranks": 8, **GPU}, 2, 4, 4),
        ({"gpus_per_node": 4}, {"ranks": 2, **GPU}, 1, 2, 2),
        ({"gpus_per_node": 4}, {"ranks": 8}, 1, 8, None),
        ({"gpus_per_node": 2, "ranks_per_node": 4}, {"ranks": 4, **GPU}, 1, 4, 2),
        ({"sbatch": {"gres": "gpu:2"}}, {"ranks": 2, **GPU}, 1, 2, None),
    ],
)
def test_nodes_tasks_and_gpus(
    launch: dict[str, Any], point: dict[str, Any], nodes: int, tasks: int, gpus: int | None
) -> None:
    asked = LaunchSettings(**launch).resources(Point(**point))
    assert (asked["nodes"], asked["ntasks_per_node"]) == (nodes, tasks)
    assert asked.get("gpus_per_node") == gpus


def test_cores_are_the_threads_of_the_point() -> None:
    point = Point(threads=3)
    assert LaunchSettings().resources(point)["cpus_per_task"] == 3
    assert LaunchSettings(cpus_per_task=8).resources(point)["cpus_per_task"] == 8


def test_points_that_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match=r"3 ranks do not divide evenly over launch\.nodes: 2"):
        LaunchSettings(nodes=2).resources(Point(ranks=3))
    with pytest.raises(ValueError, match=r"device gpu needs launch\.gpus_per_node"):
        LaunchSettings().resources(Point(device="gpu"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"partitoin": "a"}, "Extra inputs"),
        ({"how": "ssh"}, "'local' or 'slurm'"),
        ({"time": 0}, "greater than or equal to 1"),
        ({"memory": "64 GB"}, "pattern"),
        ({"nodes": 2, "ranks_per_node": 4}, "give one of them"),
        ({"sbatch": {"ntasks_per_node": 4}}, "use the key ranks_per_node"),
        ({"sbatch": {"output": "x"}}, "worked out from each point"),
        ({"sbatch": {"--exclusive": True}}, "write exclusive, without the dashes"),
        ({"sbatch": {"exclusive": False}}, "leave it out"),
    ],
)
def test_mistakes(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LaunchSettings(**given)
    with pytest.raises(ValidationError, match=words):
        Study(grids=[{}], launch=given)


def test_a_study_is_local_unless_it_says_otherwise() -> None:
    assert Study(grids=[{}]).launch.how == "local"
