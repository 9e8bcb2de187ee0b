"""What changed between two studies: beyond chance only where intervals tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardinv.study.analysis.comparison import Tolerance, compare
from shardinv.study.analysis.summary import Row, summarise
from shardinv.study.measurement import Measurement, Memory
from tests.study.analysis.test_summary import measurement

NOISY = [2.0, 2.2, 1.9, 2.1, 2.0, 1.8, 2.1, 2.0, 1.9, 2.2, 2.0, 2.1]


def rows(*measurements: Measurement) -> list[Row]:
    return summarise(measurements)


def test_the_same_again() -> None:
    before, after = rows(measurement(NOISY, ranks=2)), rows(measurement(NOISY[::-1], ranks=2))
    (change,) = compare(before, after).changes
    assert change.ratio[1] < 1 < change.ratio[2]
    assert change.verdict == "no difference beyond chance"
    assert change.memory == change.bytes_sent == 1
    assert change.regressions(Tolerance()) == []


@pytest.mark.parametrize(("factor", "verdict"), [(1.5, "slower"), (0.5, "faster")])
def test_another_time(factor: float, verdict: str) -> None:
    before = rows(measurement(NOISY, ranks=2))
    after = rows(measurement([factor * second for second in NOISY], ranks=2))
    (change,) = compare(before, after).changes
    assert change.ratio[0] == pytest.approx(factor)
    assert change.verdict == verdict
    expected = ["takes 1.50 times as long"] if factor > 1 else []
    assert change.regressions(Tolerance()) == expected
    # What is tolerated is no regression, however certain.
    assert change.regressions(Tolerance(seconds=0.6)) == []


def test_what_is_not_time() -> None:
    first = measurement(NOISY, ranks=2)
    worse = replace(
        first,
        psnr_db=[20.0, 29.5],
        memory=[Memory(2000)] * 2,
        costs=[[replace(cost, bytes_sent=cost.bytes_sent + 12) for cost in r] for r in first.costs],
    )
    (change,) = compare(rows(first), rows(worse)).changes
    told = change.regressions(Tolerance())
    assert [line.split()[0] for line in told] == ["has", "takes", "sends"]
    assert change.regressions(Tolerance(memory=1.0, psnr_db=1.0)) == told[2:]
    assert compare(rows(worse), rows(first)).changes[0].regressions(Tolerance()) == []


def test_points_of_one_alone() -> None:
    found = compare(
        rows(measurement(NOISY), measurement(NOISY, ranks=2)),
        rows(measurement(NOISY, ranks=2), measurement(NOISY, ranks=4)),
    )
    assert [change.point.ranks for change in found.changes] == [2]
    assert [point.ranks for point in found.only_first] == [1]
    assert [point.ranks for point in found.only_second] == [4]
