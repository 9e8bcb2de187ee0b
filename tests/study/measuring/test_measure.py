"""A small point measured on real ranks: same quality, exact bytes, stages that add up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from shardinv import DistributedContext
from shardinv.study.measuring.measure import Measurement, measure
from shardinv.study.plan.point import Point
from tests.harness import WorkerPool

SMALL: dict[str, Any] = {
    "size": 64, "frames": 3, "tile": 32, "overlap": 24, "iterations": 4,
}  # fmt: skip
IMAGE = 3 * 64 * 64 * 4


def run(ctx: DistributedContext, point: Point) -> Measurement | None:
    return measure(point)


def measured(pool: WorkerPool, **options: Any) -> Measurement:
    point = Point(**SMALL, **options)
    first, *others = pool.run(run, point, world_size=point.ranks)
    assert others == [None] * (point.ranks - 1)
    assert isinstance(first, Measurement)
    return first


@pytest.fixture(scope="module")
def plain(pool: WorkerPool) -> Measurement:
    return measured(pool, system="deepinv")


@pytest.mark.parametrize(
    ("ranks", "layout"), [(1, "replicated"), (2, "replicated"), (3, "sharded")]
)
def test_ranks(pool: WorkerPool, plain: Measurement, ranks: int, layout: str) -> None:
    found = measured(pool, ranks=ranks, layout=layout)
    assert len(plain.psnr_db) == 5
    assert found.psnr_db == pytest.approx(plain.psnr_db, abs=1e-3)
    assert [len(row) for row in found.iterations] == [ranks] * 4
    for row in found.iterations:
        for rank in row:
            stages = (rank.physics, rank.denoiser, rank.waiting, rank.moving)
            assert min(stages) >= 0
            assert sum(stages) == pytest.approx(rank.total, rel=0.02)
    assert found.work is not None
    assert len(found.work.by_rank) == ranks
    assert sum(found.work.by_rank) == found.work.with_padding >= found.work.with_halo > 64**2
    assert len(found.peak_bytes) == ranks
    json.dumps(found.record())


def test_bytes_are_the_formula(pool: WorkerPool) -> None:
    found = measured(pool, ranks=2)
    for costs in found.costs:
        sent = {(cost.block, cost.operation): (cost.calls, cost.bytes_sent) for cost in costs}
        # An all-reduce of the image, and a gather of what the other rank has not computed.
        assert sent == {
            ("fidelity", "all_reduce"): (4, 4 * IMAGE),
            ("denoiser", "gather"): (4, 4 * IMAGE // 2),
        }


def test_peer(pool: WorkerPool, plain: Measurement) -> None:
    found = measured(pool, system="deepinv.distributed", ranks=2)
    assert found.psnr_db == pytest.approx(plain.psnr_db, abs=0.5)
    assert found.costs == [[], []]
    assert found.work is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 62}, "must be a multiple of 4"),
        ({"system": "deepinv", "ranks": 2}, "ranks must be 1"),
        ({"system": "deepinv.distributed", "layout": "sharded"}, "no sharded images"),
        ({"tile": 16}, "overlap 24 is wider than tile 16"),
        ({"tiles": 16}, "Extra inputs"),
    ],
)
def test_points_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Point(**{**SMALL, **options})


def test_keys() -> None:
    assert Point(**SMALL).key == Point(**dict(reversed(SMALL.items()))).key
    assert Point(**SMALL).key != Point(**SMALL, ranks=2).key
