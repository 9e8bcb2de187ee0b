"""The sentences at the top of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardinv.study.collection import collect
from shardinv.study.report.words import summary
from shardinv.study.report.write import naming_of
from tests.study.report import made_up


def said(measurements: list[Any], **plan: Any) -> dict[str, str]:
    collection = collect(Path("study"), measurements, {"study": plan}, (("0123", "gone"),))
    words = summary(collection, naming_of(collection))
    return {title: text.replace("\N{NO-BREAK SPACE}", " ") for title, text in words}


def test_strong_scaling() -> None:
    found = said(made_up.study(quality=True))
    assert found["Fastest"] == (
        "deepinv.distributed, 4 ranks: 226 ms an iteration (225 ms to 227 ms), 4.00 times as fast "
        "as the baseline (deepinv): an efficiency of 100 %."
    )
    assert found["Held back by"].startswith("shardinv replicated, 4 ranks: halo work takes")
    assert found["Beside deepinv.distributed"].endswith("1.53 times as slow.")
    assert "shardinv differs by at most 0.013 (relative) and 0.0013 dB" in found["Quality"]
    assert found["Not measured"].startswith("1 point failed")


def test_intervals_that_overlap() -> None:
    both = [made_up.measurement(system=system, ranks=1) for system in ("shardinv", "deepinv")]
    peer = made_up.measurement(system="deepinv.distributed", ranks=1)
    own = made_up.measurement(ranks=1)
    peer.iterations[:] = own.iterations
    assert "neither is surely faster" in said([*both, peer])["Beside deepinv.distributed"]


def test_nothing_beats_the_baseline() -> None:
    found = said([made_up.measurement(system="deepinv"), made_up.measurement(ranks=1)])
    assert found["Fastest"] == "deepinv: 900 ms an iteration."
    assert found["Quality"] == "PSNR ends at 28.00 dB; no point was compared with a reference run."


def test_weak_scaling_is_about_the_largest() -> None:
    grid = [(1, 64), (4, 128)]
    measured = [made_up.measurement(ranks=ranks, size=size) for ranks, size in grid]
    found = said(measured, scaling="weak")
    assert found["Largest"].startswith(
        "shardinv replicated, 4 ranks, 128²: 345 ms an iteration, at equal pixels, "
    )
