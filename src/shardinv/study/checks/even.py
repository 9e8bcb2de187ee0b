"""What would be even: numbers of ranks, tiles, operators that leave no rank waiting for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardinv.denoise.tiling import TilingOptions
from shardinv.geometry import deal, imbalance

EVEN = 1.05
"""Busiest over mean up to which ranks count as even."""

_MOST_CUTS = 48


def even_ranks(costs: Sequence[float], ranks: int) -> list[int]:
    """The next smaller and the next larger number of ranks to which pieces are dealt evenly.

    Parameters
    ----------
    costs
        Of each piece.
    ranks
        The number that is not even. More than there are pieces are never.

    Examples
    --------
    >>> even_ranks([1] * 8, 3), even_ranks([1] * 5, 4)
    ([2, 4], [1, 5])
    """

    def even(count: int) -> bool:
        return imbalance(costs, deal(costs, count)) <= EVEN

    smaller = next((n for n in range(min(ranks - 1, len(costs)), 0, -1) if even(n)), None)
    larger = next((n for n in range(ranks + 1, len(costs) + 1) if even(n)), None)
    return [n for n in (smaller, larger) if n is not None]


def even_count(count: int, ranks: int) -> list[int]:
    """The next smaller and the next larger number of equal pieces that ranks share evenly.

    Examples
    --------
    >>> even_count(5, 4), even_count(3, 4)
    ([4, 8], [4])
    """
    smaller = count - count % ranks
    return [n for n in (smaller, smaller + ranks) if n > 0]


def better_tile(
    options: TilingOptions, spatial: Sequence[int], stride: int, ranks: int
) -> tuple[int, float] | None:
    """The tile with which the busiest rank has least to do, where that is less than now.

    Parameters
    ----------
    options
        How the image is cut now.
    spatial
        Its spatial shape.
    stride
        Of the network.
    ranks
        Their number.

    Returns
    -------
    tuple or None
        Largest side of a tile in pixels, and what the busiest rank computes over what it does now.
    """

    def busiest(chosen: TilingOptions) -> int:
        costs = chosen.grid(spatial, stride).costs
        return max(sum(costs[i] for i in hand) for hand in deal(costs, ranks))

    now, longest = busiest(options), max(spatial)
    overlap = options.overlap if isinstance(options.overlap, int) else max(options.overlap)
    found: tuple[int, float] | None = None
    for cuts in range(1, _MOST_CUTS + 1):
        side = -(-longest // cuts)
        side = -(-side // stride) * stride
        if side < max(overlap, 8) or (overlap >= longest and cuts > 1):
            break
        load = busiest(replace(options, patch_size=side)) / now
        if load < (0.97 if found is None else found[1]):
            found = side, load
    return found
