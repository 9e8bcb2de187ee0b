"""Factors multiply to the efficiency, and each planted fault is found and named."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from shardinv.study.analysis.efficiency import scaling
from shardinv.study.analysis.factors import Iteration, Work, factors, limit


def iteration(
    physics: float, denoiser: float, waiting: float = 0.0, moving: float = 0.0, *, total: float
) -> Iteration:
    return Iteration({"physics": physics, "denoiser": denoiser}, waiting, moving, total)


BASELINE = iteration(1.0, 8.0, total=9.0)
EVEN = Work(1000, 1000, 1000, 1000, (250,) * 4)
IDEAL = iteration(0.25, 2.0, total=2.25)


def test_ideal() -> None:
    found = factors(BASELINE, EVEN, [IDEAL] * 4)
    assert [factor.value for factor in found] == pytest.approx([1.0] * 8)
    assert limit(found) == "Nothing takes more than 3 % away."


LARGER = {"with_halo": 1500, "with_quantisation": 1500, "with_padding": 1500}
ALONE = iteration(0.25, 4.0, total=4.25)


@pytest.mark.parametrize(
    ("name", "work", "ranks"),
    [
        (
            "halo work",
            replace(EVEN, **LARGER, by_rank=(375,) * 4),
            [iteration(0.25, 3.0, total=3.25)] * 4,
        ),
        (
            "tile quantisation",
            replace(EVEN, with_quantisation=1500, with_padding=1500, by_rank=(375,) * 4),
            [iteration(0.25, 3.0, total=3.25)] * 4,
        ),
        (
            "network padding",
            replace(EVEN, with_padding=1500, by_rank=(375,) * 4),
            [iteration(0.25, 3.0, total=3.25)] * 4,
        ),
        (
            "uneven ranks",
            replace(EVEN, by_rank=(500, 250, 250, 0)),
            [iteration(0.25, d, 4.0 - d, total=4.25) for d in (4.0, 2.0, 2.0, 0.0)],
        ),
        (
            "uneven ranks",  # three operators on four ranks; its work is in the physics
            replace(EVEN, physics_by_rank=(0.5, 0.25, 0.25, 0.0)),
            [iteration(p, 2.0, 0.5 - p, total=2.5) for p in (0.5, 0.25, 0.25, 0.0)],
        ),
        (
            "slow rank",
            EVEN,
            [ALONE, *[iteration(0.25, 2.0, 2.0, total=4.25)] * 3],
        ),
        ("communication", EVEN, [iteration(0.25, 2.0, moving=1.5, total=3.75)] * 4),
        ("host", EVEN, [iteration(0.25, 2.0, total=3.5)] * 4),
        ("rest", EVEN, [ALONE] * 4),
    ],
)
def test_planted(name: str, work: Work, ranks: list[Iteration]) -> None:
    found = factors(BASELINE, work, ranks)
    slowest = max(rank.total for rank in ranks)
    efficiency = scaling(slowest, 4, 1.0, baseline_seconds=9.0).efficiency
    assert prod(factor.value for factor in found) == pytest.approx(efficiency, rel=1e-12)
    assert min(found, key=lambda factor: factor.value).name == name
    assert limit(found).startswith(f"{name} takes ")
    for factor in found:
        if factor.name != name:
            assert factor.value == pytest.approx(1.0), factor


def test_messages_that_nobody_noted() -> None:
    found = factors(BASELINE, EVEN, [iteration(0.25, 3.0, total=3.4)] * 4, messages_noted=False)
    assert found[-1].name == "communication and rest"
    assert prod(factor.value for factor in found) == pytest.approx(2.25 / 3.4)
    assert "communication" not in [factor.name for factor in found]


def test_ranks_without_work() -> None:
    with pytest.raises(ValueError, match="2 ranks were measured"):
        factors(BASELINE, EVEN, [IDEAL] * 2)
