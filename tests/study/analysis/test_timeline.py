"""Stages of an iteration add up, and communication is taken out of the stage that it was in."""

from __future__ import annotations

import pytest

from shardinv.ledger import Event
from shardinv.study.analysis.timeline import Stamps, costs, iterations


def event(block: str, started: float, done: float, sent: int = 10) -> Event:
    return Event(block, "gather", sent, started, done, done, done)


# Two iterations of two ranks; rank 1 comes a second later to the first reduction.
STAMPS = [
    [Stamps(0.0, 5.0, 9.0, 9.5), Stamps(10.0, 14.0, 18.0, 18.5)],
    [Stamps(0.0, 5.0, 9.0, 9.5), Stamps(10.0, 14.0, 18.0, 18.5)],
]
TRACES = [
    [event("fidelity", 3.0, 5.0), event("denoiser", 8.0, 9.0), event("fidelity", 13.0, 14.0)],
    [event("fidelity", 4.0, 5.0), event("denoiser", 8.0, 9.0), event("fidelity", 13.0, 14.0)],
]


def test_stages() -> None:
    first, second = iterations(STAMPS, TRACES)
    early, late = first
    assert (early.physics, early.denoiser, early.waiting, early.moving) == (3.0, 3.0, 1.0, 2.0)
    assert (late.physics, late.denoiser, late.waiting, late.moving) == (4.0, 3.0, 0.0, 2.0)
    for rank in (*first, *second):
        rest = rank.total - rank.physics - rank.denoiser - rank.waiting - rank.moving
        assert rest == pytest.approx(0.5)


def test_costs_of_all_iterations() -> None:
    early, late = costs(STAMPS, TRACES)
    assert [(cost.block, cost.calls, cost.bytes_sent) for cost in early] == [
        ("fidelity", 2, 20),
        ("denoiser", 1, 10),
    ]
    assert (early[0].waiting, late[0].waiting) == (1.0, 0.0)


def test_ranks_that_do_different_things() -> None:
    with pytest.raises(ValueError, match="other operations"):
        iterations(STAMPS, [TRACES[0], TRACES[1][:1]])
