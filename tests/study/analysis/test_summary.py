"""Rows of a study from measurements whose times are made up."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from shardinv.study.analysis.communication import Cost
from shardinv.study.analysis.factors import Iteration, Work
from shardinv.study.analysis.summary import summarise
from shardinv.study.measuring.measure import Measurement
from shardinv.study.plan.point import Point


def measurement(seconds: list[float], **options: Any) -> Measurement:
    point = Point(size=64, tile=32, iterations=len(seconds), **options)
    ranks = point.ranks
    work = Work(4096, 6144, 6144, 6144, (6144 // ranks,) * ranks)
    return Measurement(
        point,
        [20.0, 30.0],
        [[Iteration(0.1 * s, 0.8 * s, 0.0, 0.1 * s, s)] * ranks for s in seconds],
        [[Cost("fidelity", "all_reduce", len(seconds), 500 * len(seconds), 0.0, 1.0, 0.0)]] * ranks
        if point.system == "shardinv" else [[]],
        work if point.system == "shardinv" else None,
        [0] * ranks,
    )  # fmt: skip


STEADY = [9.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_rows() -> None:
    plain = measurement([8.0, 3.0, 3.0, 3.0], system="deepinv")
    two = [measurement(STEADY, ranks=2, repeat=repeat) for repeat in range(3)]
    other = measurement([1.0] * 4, system="deepinv", seed=3)  # another problem
    rows = summarise([plain, *two, other])
    assert [(row.point.system, row.point.ranks) for row in rows] == [
        ("deepinv", 1), ("shardinv", 2), ("deepinv", 1),
    ]  # fmt: skip
    assert rows[0].scaling is None
    assert rows[0].limit == ""
    row = rows[1]
    assert row.seconds == (2.0, 2.0, 2.0)  # warm-up is left out
    assert row.bytes_sent == 500
    assert row.psnr_db == 30
    assert row.scaling is not None
    assert row.scaling.speedup == pytest.approx(1.5)
    assert row.scaling.efficiency == pytest.approx(0.75)
    assert row.scaling.work_normalised_efficiency == pytest.approx(0.75 * 1.5)
    assert prod(factor.value for factor in row.factors) == pytest.approx(0.75, rel=0.01)
    assert row.limit.startswith("halo work takes")


def test_without_an_undistributed_run() -> None:
    """The fewest ranks are the baseline, and factors aren't known."""
    one, two = summarise([measurement(STEADY), measurement(STEADY, ranks=2)])
    assert one.scaling is None
    assert two.scaling is not None
    assert two.scaling.efficiency == pytest.approx(0.5)
    assert two.factors == ()


def test_read_what_was_recorded() -> None:
    found = measurement(STEADY, ranks=2)
    assert Measurement.read(found.record()) == found
