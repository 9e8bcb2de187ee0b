"""Rows of a study from measurements whose times are made up."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from shardinv.study.analysis.agreement import Agreement
from shardinv.study.analysis.communication import Cost
from shardinv.study.analysis.factors import Iteration, Work
from shardinv.study.analysis.summary import summarise
from shardinv.study.analysis.timeline import Span
from shardinv.study.measurement import Energy, Kernels, Measurement, Memory
from shardinv.study.plan.point import Point


def measurement(seconds: list[float], **options: Any) -> Measurement:
    point = Point(**{"size": 64, "tile": 32, "iterations": len(seconds), **options})
    ranks, pixels = point.ranks, point.pixels
    larger = pixels * 3 // 2
    work = Work(pixels, larger, larger, larger, (larger // ranks,) * ranks)
    stages = ("physics", "denoiser")
    if point.task == "train":
        stages = ("forward", "backward")
    ours = point.system == "shardinv"
    cost = Cost("fidelity", "all_reduce", len(seconds), 500 * len(seconds), 0.0, 1.0, 0.0)
    return Measurement(
        point=point,
        psnr_db=[20.0, 30.0],
        ssim=[0.5, 0.9],
        agreement={"untiled": [Agreement(0.0, 1e-6, 1e-5, None)] * 2},
        iterations=[
            [Iteration(dict(zip(stages, (0.1 * s, 0.8 * s))), 0.0, 0.1 * s, s)] * ranks
            for s in seconds
        ],
        costs=[[cost]] * ranks if ours else [[]],
        work=work if ours else None,
        memory=[Memory(1000 + rank) for rank in range(ranks)],
        energy=Energy(3.0 * len(seconds), "RAPL"),
        kernels=[Kernels(2.0, 1.5, 0.25, [("aten::conv2d", 3, 1.0)])],
        timeline=[[Span("physics", "stage", 0.0, 1.0)]],
        machine={"host": "here"},
    )


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
    assert prod(factor.value for factor in row.factors) == pytest.approx(0.75)
    assert row.limit.startswith("halo work takes")
    assert row.peak_bytes == 1001
    assert row.joules == 3.0
    assert row.worker_seconds == 2.0 * 6 * 2
    assert row.price(3600.0) == 24.0


def test_weak_scaling() -> None:
    """Four times the pixels on four ranks: as fast as the baseline is ideal."""
    plain = measurement([2.0] * 4, system="deepinv")
    four = measurement([2.5] * 4, ranks=4, size=128)
    _, row = summarise([plain, four], scaling="weak")
    assert row.scaling is not None
    assert row.scaling.efficiency == pytest.approx(0.8)
    assert row.scaling.speedup == pytest.approx(3.2)
    _, strong = summarise([plain, four])
    assert strong.scaling is None  # another problem, by itself


def test_training_has_no_factors() -> None:
    plain = measurement([2.0] * 4, system="deepinv", task="train")
    _, row = summarise([plain, measurement([1.0] * 4, ranks=2, task="train")])
    assert row.scaling is not None
    assert row.factors == ()


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
