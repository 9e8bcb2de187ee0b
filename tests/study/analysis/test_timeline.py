"""Stages of an iteration add up, and communication is taken out of the stage that it was in."""

from __future__ import annotations

import pytest

from shardinv.ledger import Event
from shardinv.study.analysis.timeline import Stamps, costs, iterations, spans


def event(block: str, started: float, done: float, sent: int = 10) -> Event:
    return Event(block, "gather", sent, started, done, done, done)


def stamps(start: float, physics: float, denoiser: float, rest: float) -> Stamps:
    return Stamps(start, {"physics": physics, "denoiser": denoiser, "rest": rest})


# Two iterations of two ranks; rank 1 comes a second later to the first reduction.
STAMPS = [
    [stamps(0.0, 5.0, 9.0, 9.5), stamps(10.0, 14.0, 18.0, 18.5)],
    [stamps(0.0, 5.0, 9.0, 9.5), stamps(10.0, 14.0, 18.0, 18.5)],
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
        assert rank.stages["rest"] == pytest.approx(0.5)
        assert sum(rank.stages.values()) + rank.waiting + rank.moving == pytest.approx(rank.total)


def test_costs_of_all_iterations() -> None:
    early, late = costs(STAMPS, TRACES)
    assert [(cost.block, cost.calls, cost.bytes_sent) for cost in early] == [
        ("fidelity", 2, 20),
        ("denoiser", 1, 10),
    ]
    assert (early[0].waiting, late[0].waiting) == (1.0, 0.0)


def test_spans_of_an_iteration() -> None:
    early, late = spans([own[0] for own in STAMPS], TRACES)
    assert [(s.name, s.kind, s.start, s.end) for s in early] == [
        ("physics", "stage", 0.0, 5.0),
        ("denoiser", "stage", 5.0, 9.0),
        ("rest", "stage", 9.0, 9.5),
        ("fidelity gather", "waiting", 3.0, 4.0),
        ("fidelity gather", "moving", 4.0, 5.0),
        ("denoiser gather", "moving", 8.0, 9.0),
    ]
    assert [(s.kind, s.start, s.end) for s in late if s.kind != "stage"] == [
        ("moving", 4.0, 5.0),
        ("moving", 8.0, 9.0),
    ]


def test_ranks_that_do_different_things() -> None:
    with pytest.raises(ValueError, match="other operations"):
        iterations(STAMPS, [TRACES[0], TRACES[1][:1]])
