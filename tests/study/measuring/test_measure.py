"""A small point measured on real ranks: same quality, exact bytes, stages that add up."""

from __future__ import annotations

import json
import time
from math import prod
from typing import Any

import pytest
from deepinv.models import FFDNet
from pydantic import ValidationError

from shardinv import DistributedContext
from shardinv.study.analysis.summary import summarise
from shardinv.study.measurement import Measurement
from shardinv.study.measuring.measure import measure
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
            stages = (*rank.stages.values(), rank.waiting, rank.moving)
            assert list(rank.stages) == ["physics", "denoiser", "rest"]
            assert min(stages) >= 0
            assert sum(stages) == pytest.approx(rank.total, rel=1e-6)
            assert rank.stages["rest"] < 0.02 * rank.total
    assert found.work is not None
    assert len(found.work.by_rank) == ranks
    assert sum(found.work.by_rank) == found.work.with_padding >= found.work.with_halo > 64**2
    assert len(found.memory) == len(found.timeline) == ranks
    assert len(found.work.physics_by_rank) == ranks
    assert sum(found.work.physics_by_rank) == pytest.approx(1)
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
    # Four windows of 32 px and a halo of 24 on each side, wherever they lie.
    assert found.work is not None
    assert found.work.with_quantisation == 4 * 80**2
    assert found.work.by_rank == (2 * 80**2,) * 2
    assert found.work.with_halo == 4 * 56**2
    names = [factor.name for factor in summarise([plain, found])[1].factors]
    assert "tile quantisation" in names


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


def test_volume(pool: WorkerPool) -> None:
    """In three dimensions, both layouts give what the undistributed program does."""
    cube: dict[str, Any] = {
        "problem": "volume", "network": "drunet", "size": 16, "frames": 3, "tile": 8,
        "overlap": 8, "iterations": 2,
    }  # fmt: skip
    found = [
        pool.run(run, Point(**cube, **options), world_size=options.get("ranks", 1))[0]
        for options in (
            {"ranks": 1},
            {"ranks": 2},
            {"ranks": 2, "layout": "sharded"},
        )
    ]
    one, *others = found
    assert one.psnr_db[-1] > one.psnr_db[0]
    for other in others:
        assert other.psnr_db == pytest.approx(one.psnr_db, abs=1e-4)


def test_training(pool: WorkerPool) -> None:
    """Stages of a training step; what it learns does not depend on the ranks."""
    step: dict[str, Any] = {**SMALL, "size": 32, "tile": 16, "overlap": 8, "iterations": 3}
    step |= {"task": "train", "unrolled": 2}
    one, two = (pool.run(run, Point(**step, ranks=ranks), world_size=ranks)[0] for ranks in (1, 2))
    assert two.psnr_db == pytest.approx(one.psnr_db, abs=1e-3)
    assert two.psnr_db[-1] > two.psnr_db[1]
    for rank in two.iterations[-1]:
        assert list(rank.stages) == ["forward", "backward", "update", "rest"]
        assert rank.stages["backward"] > rank.stages["update"] > 0
    assert sum(cost.bytes_sent for cost in two.costs[0]) > 0


def test_profile(pool: WorkerPool) -> None:
    found = measured(pool, ranks=2, profile=True)
    assert len(found.kernels) == 2
    for rank in found.kernels:
        assert 0 < rank.compute < rank.seconds
        assert 0 < rank.communication < rank.seconds
        assert rank.compute + rank.communication + rank.gaps == pytest.approx(rank.seconds, rel=0.1)
        assert "aten::mkldnn_convolution" in [name for name, _, _ in rank.longest]
    # The profiled iteration isn't one of the measured ones.
    assert [cost.calls for cost in found.costs[0]] == [4, 4]


def slow(ctx: DistributedContext, point: Point) -> Measurement | None:
    """As ``run``, on a machine whose last rank takes a quarter of a second more for a tile."""
    if ctx.rank == ctx.world_size - 1:
        forward = FFDNet.forward

        def late(self: FFDNet, *args: Any, **kwargs: Any) -> Any:
            time.sleep(0.25)
            return forward(self, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FFDNet, "forward", late)
            return measure(point)
    return measure(point)


@pytest.mark.parametrize(
    ("planted", "function", "options"),
    [
        ("slow rank", slow, {"ranks": 2, "overlap": 8}),
        ("halo work", run, {"ranks": 2, "tile": 16, "overlap": 16}),
        ("uneven ranks", run, {"ranks": 3, "tile": 64, "overlap": 0}),
    ],
)
def test_planted(
    pool: WorkerPool, plain: Measurement, planted: str, function: Any, options: dict[str, Any]
) -> None:
    """A fault in a real run is named."""
    point = Point(**{**SMALL, **options})
    found = pool.run(function, point, world_size=point.ranks)[0]
    row = summarise([plain, found])[1]
    assert row.scaling is not None
    assert prod(f.value for f in row.factors) == pytest.approx(row.scaling.efficiency, rel=1e-9)
    worst = sorted(row.factors, key=lambda factor: factor.value)
    # Processes that share cores with other programs have a rest as well.
    names = [factor.name for factor in worst if factor.name != "rest"]
    assert names[0] == planted, worst
