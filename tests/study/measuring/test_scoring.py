"""Agreement with reference runs: told apart what tiles cost and what distribution does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardinv import DistributedContext
from shardinv.geometry import Box
from shardinv.io import read_image
from shardinv.study.measurement import Measurement
from shardinv.study.measuring.measure import measure
from shardinv.study.measuring.scoring import Files, agreement, seams
from shardinv.study.plan.point import Point
from tests.harness import WorkerPool

# A halo of 4 is far from FFDNet's receptive field of 24.
NARROW: dict[str, Any] = {
    "size": 64, "frames": 3, "tile": 32, "overlap": 4, "iterations": 3, "quality": True,
}  # fmt: skip


def run(ctx: DistributedContext, point: Point, files: Files) -> Measurement | None:
    return measure(point, files)


def measured(pool: WorkerPool, point: Point, files: Files) -> Measurement:
    found = pool.run(run, point, files, world_size=point.ranks)[0]
    assert isinstance(found, Measurement)
    return found


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_halo_and_distribution_are_told_apart(
    pool: WorkerPool, tmp_path: Path, layout: str
) -> None:
    point = Point(**NARROW, ranks=3, layout=layout)
    folders = {name: tmp_path / name for name in point.references}
    for name, reference in point.references.items():
        assert reference.is_reference
        found = measured(pool, reference, Files(keep=folders[name]))
        assert len(list(folders[name].iterdir())) == len(found.ssim) == 4
    files = Files(folders, pictures=tmp_path / "look")
    found = measured(pool, point, files)
    untiled, tiled = found.agreement["untiled"], found.agreement["tiled"]
    assert len(untiled) == len(tiled) == 4
    assert untiled[0].relative < 1e-6  # before the first denoiser
    for step in tiled[1:]:
        assert step.relative < 1e-6
        assert abs(step.psnr_difference_db) < 1e-5
    for step in untiled[1:]:
        assert step.seams is not None
        assert 1e-5 < step.relative < step.seams < 0.1
        assert step.maximum > step.relative
    end = torch.from_numpy(np.load(folders["tiled"] / "0003.npy"))
    picture = read_image(tmp_path / "look-end.png")
    assert (picture - end.clamp(0, 1)).abs().max() < 0.003
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "look-end.png", "look-start.png", "look-truth.png",
    }  # fmt: skip


def test_references() -> None:
    point = Point(**NARROW, ranks=2, layout="sharded", precision="bfloat16", repeat=2)
    plain = point.references["untiled"]
    assert (plain.system, plain.ranks, plain.precision, plain.repeat) == (
        "deepinv", 1, "float32", 0,
    )  # fmt: skip
    # What it doesn't use makes no other run of it.
    other = point.model_copy(update={"overlap": 8, "tile": 16})
    assert other.references["untiled"] == plain
    assert other.references["tiled"] != point.references["tiled"]
    assert not point.is_reference
    assert Point(system="deepinv", size=64).references == {}


def test_agreement_and_seams() -> None:
    band = seams([Box((0, 0), (40, 64)), Box((40, 0), (64, 64))], (64, 64))
    assert band.nonzero()[:, 0].unique().tolist() == list(range(32, 48))
    reference = torch.full((1, 3, 64, 64), 0.5)
    image = reference.clone()
    image[0, 1, 40, 7] += 0.25
    found = agreement(image, reference, reference, band)
    assert found.maximum == 0.25
    assert found.relative == pytest.approx(0.25 / 0.5 / (3 * 64 * 64) ** 0.5)
    assert found.seams == pytest.approx(0.25 / 0.5 / (3 * 16 * 64) ** 0.5)
    assert found.psnr_difference_db == -float("inf")
    assert agreement(image, reference, image, torch.zeros(64, 64, dtype=torch.bool)).seams is None


def test_a_reference_of_another_length(tmp_path: Path, pool: WorkerPool) -> None:
    """A run without iterates to compare with ends with what is missing."""
    (tmp_path / "empty").mkdir()
    outcomes = pool.run(
        run, Point(**NARROW, ranks=2), Files({"tiled": tmp_path / "empty"}),
        world_size=2, expect_error=True,
    )  # fmt: skip
    assert all("0000.npy" in str(outcome) for outcome in outcomes)


def test_precision(pool: WorkerPool) -> None:
    options = {**NARROW, "quality": False, "overlap": 24, "ranks": 2}
    full = measured(pool, Point(**options), Files())
    half = measured(pool, Point(**options, precision="bfloat16"), Files())
    assert 1e-4 < abs(full.psnr_db[-1] - half.psnr_db[-1]) < 0.5
