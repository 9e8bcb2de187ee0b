"""Warm-up and intervals against what is known of them."""

from __future__ import annotations

import random

import pytest

from shardinv.study.analysis.statistics import median_interval, warm_up


@pytest.mark.parametrize("slow", [0, 1, 2, 5])
def test_warm_up_is_found(slow: int) -> None:
    draw = random.Random(slow)
    times = [3.0 * 0.5**k + 2 for k in range(slow)] + [draw.gauss(1.0, 0.02) for _ in range(12)]
    assert abs(warm_up(times) - slow) <= 1


def test_a_late_outlier_is_no_warm_up() -> None:
    assert warm_up([1.0, 1.01, 0.99, 1.0, 1.0, 1.02, 9.0, 1.0]) <= 4
    assert warm_up([1.0]) == warm_up([]) == 0


@pytest.mark.parametrize("count", [6, 9, 20, 35])
def test_the_interval_has_the_median_as_often_as_it_says(count: int) -> None:
    draw = random.Random(count)
    held = 0
    for _ in range(2000):
        middle, low, high = median_interval([draw.random() for _ in range(count)])
        assert low <= middle <= high
        held += low <= 0.5 <= high
    assert 0.94 < held / 2000 <= 1.0


def test_few_values() -> None:
    assert median_interval([2.0]) == (2.0, 2.0, 2.0)
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="at least one value"):
        median_interval([])
