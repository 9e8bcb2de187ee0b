"""The distributed run beside undistributed ones: a wrong halo and a wrong rank are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shardinv import DistributedContext
from shardinv.io import write_image
from shardinv.study.checks import matching, references
from shardinv.study.checks.finding import Finding
from shardinv.study.checks.iterating import run
from shardinv.study.checks.live_bytes import LiveBytes
from shardinv.study.checks.matching import Distance
from shardinv.study.checks.reach import reach
from shardinv.study.checks.references import Outcome, choose, compare
from shardinv.study.checks.run import checks
from shardinv.study.measuring.build import build
from shardinv.study.plan.point import Point
from tests.harness import WorkerPool

SMALL: dict[str, Any] = {"size": 64, "frames": 3, "tile": 32, "overlap": 24, "iterations": 4}


def check(ctx: DistributedContext, point: Point, folder: Path) -> list[Finding]:
    return list(checks(point, folder, 2))


def photograph(folder: Path) -> str:
    """One that is read in no time."""
    path = folder / "photograph.png"
    write_image(path, load_small())
    return str(path)


def load_small() -> torch.Tensor:
    rows = torch.linspace(0, 9, 72)
    smooth = 0.5 + 0.4 * torch.sin(rows[:, None] * torch.tensor([1.0, 2.0, 3.0])[:, None, None])
    return (smooth * (0.7 + 0.3 * torch.cos(2 * rows)))[None]


def found(pool: WorkerPool, folder: Path, **options: Any) -> dict[str, Finding]:
    point = Point(**{**SMALL, "photograph": photograph(folder), **options})
    first, *others = pool.run(check, point, folder, world_size=point.ranks)
    assert all(other == first for other in others)
    return {finding.name: finding for finding in first}


def test_all_is_well(pool: WorkerPool, tmp_path: Path) -> None:
    findings = found(pool, tmp_path, ranks=2, frames=4)
    steady = [f for name, f in findings.items() if name.split(":")[0] in ("results", "writing")]
    steady += [findings[name] for name in ("balance: network", "balance: operators")]
    assert [finding.status for finding in steady] == ["ok"] * 6
    assert findings["results: distribution"].figures["relative"] < 1e-5
    assert findings["results: halo"].figures["relative"] < 1e-5
    for name in ("links: latency", "links: bandwidth", "links: share", "machine: memory"):
        assert name in findings
    figures = findings["balance: seconds"].figures["seconds"]
    assert [len(times) for times in figures.values()] == [2, 2]
    assert min(min(times) for times in figures.values()) > 0
    assert findings["links: bandwidth"].figures["bytes_per_second"] > 1e6
    # An all-reduce of the image and a gather of half of it, of two ranks.
    image = 3 * 64**2 * 4
    assert findings["links: share"].figures["bytes_sent"] == [1.5 * image] * 2


def test_a_halo_too_small(pool: WorkerPool, tmp_path: Path) -> None:
    findings = found(pool, tmp_path, ranks=3, layout="sharded", overlap=0)
    assert findings["results: distribution"].status == "ok"
    halo = findings["results: halo"]
    assert halo.status != "ok"
    assert halo.figures["relative"] > 1e-3
    assert 16 < halo.figures["reach"] <= 24
    assert "the halo of 0 px is smaller than what the network sees" in halo.message
    assert f"overlap: {halo.figures['reach']}" in halo.remedy
    assert halo.figures["relative_with_reach"] < 1e-4
    # Four tiles on three ranks.
    assert findings["balance: network"].status == "warning"
    assert "balance: boxes" in findings


def test_one_rank_and_one_tile(pool: WorkerPool, tmp_path: Path) -> None:
    findings = found(pool, tmp_path, ranks=1, tile=None)
    assert findings["links"].status == "ok"
    assert "one tile" in findings["results: halo"].message


def test_missing_weights_end_the_check(pool: WorkerPool, tmp_path: Path) -> None:
    findings = found(pool, tmp_path, ranks=2, network=str(tmp_path / "none.pt"))
    assert findings["machine: files"].status == "failed"
    assert "results: halo" not in findings


def with_a_wrong_rank(ctx: DistributedContext, point: Point) -> Outcome | None:
    with torch.no_grad():
        blocks = build(point, ctx)
        if ctx.rank == 1:
            blocks.step *= 1.5
        last = run(blocks, blocks.denoiser, 2)
        if ctx.is_main:
            return compare(point, blocks.denoiser, blocks.start, last, 2)
    return None


def test_a_wrong_rank(pool: WorkerPool, tmp_path: Path) -> None:
    point = Point(**SMALL, photograph=photograph(tmp_path), ranks=2)
    outcome, _ = pool.run(with_a_wrong_rank, point)
    assert outcome.start < 1e-5
    finding = matching.distribution(outcome.distribution, outcome.start, "here", "float32")
    assert finding.status == "failed"
    assert "measurements are the same: an iteration" in finding.message
    assert "depends on the rank" in finding.remedy
    # Had the measurements been others, the first iterate would have told.
    finding = matching.distribution(outcome.distribution, 0.1, "here", "float32")
    assert "the first iterate differs already" in finding.message
    assert "random generator" in finding.remedy


def test_nothing_known_is_no_success() -> None:
    nan = Distance(float("nan"), float("nan"))
    assert matching.distribution(nan, 0.0, "here", "float32").status == "failed"
    assert matching.halo(nan, "here", "float32", 8, 24, True).status == "failed"
    wide = matching.halo(Distance(1e-3, 0.0), "here", "float32", 24, 24, True)
    assert wide.status == "warning"
    assert "tile: null" in wide.remedy


@pytest.mark.parametrize("layers", [1, 3])
def test_reach_of_a_known_network(layers: int) -> None:
    convolutions = nn.Sequential(*(nn.Conv2d(1, 1, 5, padding=2) for _ in range(layers)))
    found = reach(lambda x, sigma: convolutions(x), (1, 1, 40, 40), 0.1, 1, torch.device("cpu"))
    assert found == (2 * layers, True)


def test_reach_without_end() -> None:
    pixels, whole = reach(
        lambda x, sigma: x - x.mean(), (1, 1, 16, 16, 16), 0.1, 2, torch.device("cpu")
    )
    assert not whole
    assert pixels >= 6


def test_live_bytes() -> None:
    with LiveBytes() as live:
        a = torch.zeros(1000)
        b = a + 1
        c = b * 2  # three at once
        del a, b
        view = c.view(10, 100)
        del c
        view.add_(1)
        torch.zeros(500)
    assert live.most == 3 * 4000


def test_what_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    point = Point(**{**SMALL, "photograph": photograph(tmp_path), "size": 512, "ranks": 2})
    with torch.no_grad():
        assert choose(point, 1, 1e6, device).point == point
        late = choose(point, 1, 1e-6, device)
        assert late.point is None
        assert "would take" in late.reason
        # FFDNet has 96 channels at half the resolution: some hundred bytes a pixel.
        monkeypatch.setattr(references, "memory_left", lambda device: 400 * 256**2)
        tight = choose(point, 1, 1e6, device)
    assert tight.point is not None
    assert 128 <= tight.point.size < 400
    assert tight.point.size % 4 == 0
    assert (tight.point.tile, tight.point.ranks) == (32, 2)
    assert "the whole needs" in tight.reason
    little = Point(**SMALL, ranks=2)
    assert choose(little, 1, 0.0, device).point == little
