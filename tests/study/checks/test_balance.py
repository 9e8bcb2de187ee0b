"""Uneven work is found, and named with numbers that would be even."""

from __future__ import annotations

import pytest

from shardinv.denoise import TilingOptions
from shardinv.geometry import deal, imbalance
from shardinv.study.checks import balance
from shardinv.study.checks.even import EVEN, better_tile, even_count, even_ranks
from shardinv.study.checks.finding import Finding


def tiles(spatial: tuple[int, ...], tile: int, overlap: int, ranks: int) -> Finding:
    options = TilingOptions(tile, overlap)
    costs = options.grid(spatial, 2).costs
    return balance.tiles(costs, deal(costs, ranks), options, spatial, 2)


def test_three_tiles_on_two_ranks() -> None:
    found = tiles((96, 32), 32, 0, 2)
    assert found.status == "warning"
    assert found.figures["tiles"] == [2, 1]
    assert found.figures["busiest_over_mean"] == pytest.approx(4 / 3)
    assert "3 tiles: 2, 1" in found.message
    # Tiles of 24 rows: four on two ranks.
    assert "tile: 48" in found.remedy
    assert "ranks: 1 or 3" in found.remedy


def test_even_tiles() -> None:
    found = tiles((64, 64), 32, 8, 2)
    assert (found.status, found.remedy) == ("ok", "")
    assert found.figures["busiest_over_mean"] == 1


def test_idle_ranks_are_named() -> None:
    found = tiles((64, 64), 64, 8, 3)
    assert found.status == "failed"
    assert "ranks 1, 2 without a tile" in found.message
    assert "tile: " in found.remedy


def test_five_operators_on_four_ranks() -> None:
    found = balance.operators([1.0] * 5, deal([1.0] * 5, 4))
    assert found.status == "warning"
    assert found.figures["operators"] == [2, 1, 1, 1]
    assert found.figures["busiest_over_mean"] == pytest.approx(1.6)
    assert "4 or 8 operators" in found.remedy
    assert "ranks: 1 or 5" in found.remedy


def test_a_rank_without_an_operator() -> None:
    found = balance.operators([1.0] * 2, deal([1.0] * 2, 3))
    assert found.status == "warning"
    assert "rank 2 without an operator" in found.message


def test_boxes() -> None:
    assert balance.boxes([100, 100], (2, 1)).status == "ok"
    assert balance.boxes([100, 60], (2, 1)).status == "warning"
    assert balance.boxes([100, 0], (2, 1)).status == "failed"


@pytest.mark.parametrize(
    ("work", "remedy"), [([1, 1, 1], "what else runs on rank 1"), ([1, 2, 1], "even out")]
)
def test_seconds(work: list[float], remedy: str) -> None:
    stages = {"physics": [1.0, 1.0, 1.0], "denoiser": [1.0, 3.0, 1.0]}
    found = balance.seconds(stages, {"denoiser": work})
    assert found.status == "warning"
    assert found.figures["busiest_over_mean"] == pytest.approx(4 / (1 + 5 / 3))
    assert "rank 1 is slowest in denoiser" in found.message
    assert remedy in found.remedy
    even = {"physics": [1.0, 1.1], "denoiser": [2.0, 1.9]}
    assert balance.seconds(even, {}).status == "ok"


@pytest.mark.parametrize("ranks", [2, 3, 5, 7])
def test_what_is_called_even_is(ranks: int) -> None:
    costs = [3.0, 1.0, 1.0, 2.0, 2.0, 1.0, 5.0, 1.0]
    for count in even_ranks(costs, ranks):
        assert count != ranks
        assert imbalance(costs, deal(costs, count)) <= EVEN
    assert all(count % ranks == 0 for count in even_count(11, ranks))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_better_tile_is_better(ranks: int) -> None:
    options, spatial = TilingOptions(40, 8), (120, 120)
    found = better_tile(options, spatial, 2, ranks)

    def busiest(tile: int) -> int:
        costs = TilingOptions(tile, 8).grid(spatial, 2).costs
        return max(sum(costs[i] for i in hand) for hand in deal(costs, ranks))

    if found is not None:
        side, load = found
        assert busiest(side) / busiest(40) == pytest.approx(load)
        assert load < 0.97
    else:
        assert all(busiest(side) >= 0.97 * busiest(40) for side in (30, 60, 120))
