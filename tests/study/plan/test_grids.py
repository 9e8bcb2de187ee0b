"""Grids become points; mistakes are told with their key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from shardinv.study.plan.grids import Study


def test_combinations() -> None:
    study = Study(
        common={"size": 64, "tile": 32},
        grids=[{"system": "deepinv"}, {"ranks": [1, 2], "layout": ["replicated", "sharded"]}],
        repeats=2,
    )
    found = [(p.system, p.ranks, p.layout, p.repeat) for p in study.points]
    assert found[:5] == [
        ("deepinv", 1, "replicated", 0),
        ("shardinv", 1, "replicated", 0),
        ("shardinv", 1, "sharded", 0),
        ("shardinv", 2, "replicated", 0),
        ("shardinv", 2, "sharded", 0),
    ]
    assert found[5:] == [(*point[:3], 1) for point in found[:5]]
    assert {p.size for p in study.points} == {64}


def test_a_point_named_twice_is_measured_once() -> None:
    assert len(Study(grids=[{"ranks": [1, 2]}, {"ranks": 2}]).points) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grids": [{"ranks": [1, 0]}]}, "grid 1: ranks: Input should be greater than"),
        ({"grids": [{}, {"rank": 1}]}, "grid 2: rank: Extra inputs"),
        ({"grids": [{"system": "deepinv", "ranks": 2}]}, "grid 1: undistributed DeepInverse"),
        ({"common": {"sise": 2}, "grids": [{}]}, "grid 1: sise"),
        ({"grids": []}, "at least 1 item"),
        ({"grid": [{}]}, "Extra inputs"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Study(**given)


def test_shipped_configuration() -> None:
    path = Path(__file__).parents[3] / "configs" / "strong_scaling_small.yaml"
    assert len(Study(**yaml.safe_load(path.read_text(encoding="utf-8"))).points) == 14
