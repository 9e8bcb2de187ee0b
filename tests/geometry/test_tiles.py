"""The grid of tiles: what every grid must satisfy, and known grids."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardinv.geometry import Box, TileGrid
from tests.geometry.strategies import pixels

GRIDS = st.integers(1, 2).flatmap(
    lambda ndim: st.tuples(
        st.tuples(*[st.integers(1, 30)] * ndim),
        st.tuples(*[st.integers(1, 16)] * ndim),
        st.tuples(*[st.integers(0, 12)] * ndim),
        st.tuples(*[st.sampled_from([1, 2, 3, 4, 6, 8])] * ndim),
    )
)
Options = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def stride(patch: int, align: int) -> int:
    """The alignment in force: a tile smaller than the network's stride can't follow it."""
    while align > patch:
        align = max(power for power in (1, 2, 4, 8, 16) if power <= patch)
    return align


@given(GRIDS)
def test_every_grid(options: Options) -> None:
    shape, patch_size, overlap, align = options
    assume(all(h < n for h, n in zip(overlap, shape)))
    grid = TileGrid.cover(shape, patch_size, overlap, align)
    whole = Box.whole(shape)
    assert sorted(p for tile in grid.tiles for p in pixels(tile.core)) == pixels(whole)
    for tile in grid.tiles:
        assert not tile.core.is_empty
        assert tile.core in tile.window
        assert tile.window in whole
    for axis, n in enumerate(shape):
        a = stride(patch_size[axis], align[axis])
        halo = grid.halo[axis]
        assert halo % a == 0
        assert overlap[axis] <= halo < overlap[axis] + a
        for tile in grid.tiles:
            core = (tile.core.start[axis], tile.core.stop[axis])
            window = (tile.window.start[axis], tile.window.stop[axis])
            assert core[1] - core[0] <= patch_size[axis]
            assert core[0] % a == 0
            assert window[0] % a == 0
            # A halo of full width on interior sides, as far as there is image; none at a border.
            assert window == (max(core[0] - halo, 0), min(core[1] + halo, n))
        # Balanced: cores differ by at most one stride, the last being cut short by the border.
        units = {-(-(t.core.stop[axis] - t.core.start[axis]) // a) for t in grid.tiles}
        assert max(units) - min(units) <= 1
    assert grid.costs == tuple(tile.window.size for tile in grid.tiles)
    assert grid.work_multiplier == pytest.approx(sum(grid.costs) / whole.size)
    assert grid.work_multiplier >= 1


@given(st.integers(30, 500), st.integers(16, 64), st.integers(0, 8))
def test_work_multiplier_counts_two_halos_at_each_cut(n: int, patch: int, overlap: int) -> None:
    grid = TileGrid.cover((n,), (patch,), (overlap,), (1,))
    cuts = len(grid.tiles) - 1
    assume(all(tile.core.size >= overlap for tile in grid.tiles))
    assert grid.work_multiplier == pytest.approx((n + 2 * overlap * cuts) / n)


def test_work_multiplier_of_several_axes_is_their_product() -> None:
    options = [((512,), (100,), (16,), (8,)), ((300,), (256,), (32,), (4,))]
    both = TileGrid.cover(*(sum(pair, ()) for pair in zip(*options, strict=True)))
    each = [TileGrid.cover(*option) for option in options]
    assert both.work_multiplier == pytest.approx(prod(grid.work_multiplier for grid in each))
    assert len(both.tiles) == prod(len(grid.tiles) for grid in each)


def test_4096_pixels_at_448_are_ten_tiles_of_at_most_410() -> None:
    grid = TileGrid.cover((4096,), (448,), (32,), (1,))
    assert len(grid.tiles) == 10
    assert {tile.core.size for tile in grid.tiles} == {409, 410}
    aligned = TileGrid.cover((4096,), (448,), (32,), (8,))
    assert len(aligned.tiles) == 10
    assert {tile.core.size for tile in aligned.tiles} == {408, 416}


def test_image_that_fits_is_one_tile_without_halo() -> None:
    for overlap in (0, 32, 4096):
        grid = TileGrid.cover((100, 37), (256, 37), (overlap, overlap), (8, 8))
        (tile,) = grid.tiles
        assert tile.core == tile.window == Box.whole((100, 37))
        assert grid.work_multiplier == 1


def test_stride_that_is_no_power_of_two_is_kept() -> None:
    grid = TileGrid.cover((60,), (10,), (3,), (10,))
    assert [str(tile.core) for tile in grid.tiles[:2]] == ["[0:10]", "[10:20]"]
    assert grid.halo == (10,)


def test_tile_smaller_than_the_stride_follows_the_largest_power_of_two_below() -> None:
    grid = TileGrid.cover((12,), (3,), (1,), (8,))
    assert [tile.core.size for tile in grid.tiles] == [2] * 6
    assert grid.halo == (2,)


def test_grid_knows_nothing_of_ranks() -> None:
    assert TileGrid.cover((90, 70), (32, 32), (8, 8), (8, 8)) == TileGrid.cover(
        [90, 70], [32, 32], [8, 8], [8, 8]
    )


@pytest.mark.parametrize(
    ("shape", "patch_size", "overlap", "complaint"),
    [
        ((0, 8), (4, 4), (1, 1), "at least one pixel"),
        ((8, 8), (0, 4), (1, 1), "patch_size must be at least 1"),
        ((8, 8), (-4, 4), (1, 1), "patch_size must be at least 1"),
        ((8, 8), (4, 4), (1, -1), "overlap must be at least 0"),
        ((8, 8), (4, 4), (8, 1), "as wide as the image"),
    ],
)
def test_impossible_grids_are_refused(
    shape: tuple[int, ...], patch_size: tuple[int, ...], overlap: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        TileGrid.cover(shape, patch_size, overlap, (1, 1))
