"""Our formulas, applied to the published times, give the published efficiencies."""

from __future__ import annotations

import pytest

from shardinv.study import published_scaling, scaling, work_multiplier
from shardinv.study.published import (
    WINDOW,
    published_communication,
    published_points,
    published_quality,
)


def test_efficiencies_to_the_last_digit_printed() -> None:
    found = published_scaling()
    assert {side: len(points) for side, points in found.items()} == {2048: 7, 4096: 7, 8192: 6}
    for points in found.values():
        for point, ours in points:
            # Times are printed to the microsecond: that is the rounding of what follows from them.
            rounding = 1e-6 * 2 / min(point.seconds, points[0][0].seconds)
            for mine, printed in zip(
                (ours.efficiency, ours.work_normalised_efficiency), point.printed, strict=True
            ):
                assert 100 * mine == pytest.approx(printed, rel=rounding, abs=5.1e-7)


@pytest.mark.parametrize(("side", "tiles"), [(2048, 25), (4096, 100), (8192, 361)])
def test_work_multipliers(side: int, tiles: int) -> None:
    (work,) = {point.work for point in published_points() if point.side == side and point.tiled}
    windows = [(WINDOW, WINDOW)] * tiles
    assert round(work_multiplier((side, side), windows), 6) == work
    assert {p.tiles for p in published_points() if p.side == side} - {1} == {tiles}


@pytest.mark.parametrize("given", [(0.0, 1, 1.0), (1.0, 0, 1.0), (1.0, 1, -1.0)])
def test_numbers_that_make_no_sense(given: tuple[float, int, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        scaling(*given, baseline_seconds=1.0)


def test_communication_shares_as_published() -> None:
    found = {(p.problem, p.workers, p.tiled): p.share for p in published_communication()}
    assert len(found) == 14
    assert 100 * found["2D 4096×4096", 64, True] == pytest.approx(50.058168, abs=1e-3)
    assert 100 * found["3D 512×512×512", 64, True] == pytest.approx(7.319114, abs=1e-4)


def test_quality_as_published() -> None:
    found = published_quality()
    assert {side for side, _ in found} == {2048, 4096}
    assert all(len(iterations) == 11 for iterations in found.values())
    assert max(abs(difference) for each in found.values() for _, difference in each) < 2e-3
