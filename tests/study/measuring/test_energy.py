"""Counters of processors as Linux shows them, which begin anew when they are full."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardinv.study.measurement import Energy
from shardinv.study.measuring.energy import EnergyMeter, total


def write(folder: Path, name: str, joules: float) -> None:
    package = folder / name
    package.mkdir(exist_ok=True)
    (package / "energy_uj").write_text(f"{int(joules * 1e6)}\n")
    (package / "max_energy_range_uj").write_text("262143328850\n")


def test_packages(tmp_path: Path) -> None:
    write(tmp_path, "intel-rapl:0", 100.0)
    write(tmp_path, "intel-rapl:1", 262140.0)
    write(tmp_path, "intel-rapl:0:0", 50.0)  # a part of the first
    meter = EnergyMeter(folder=tmp_path)
    write(tmp_path, "intel-rapl:0", 107.0)
    write(tmp_path, "intel-rapl:1", 2.0)
    write(tmp_path, "intel-rapl:0:0", 55.0)
    used = meter.used()
    assert used is not None
    assert used.source == "RAPL"
    assert used.joules == pytest.approx(7.0 + 262143.32885 - 262140.0 + 2.0)


def test_nothing_counts(tmp_path: Path) -> None:
    assert EnergyMeter(folder=tmp_path / "none").used() is None
    assert total([]) is None
    assert total([Energy(1.0, "RAPL"), Energy(2.0, "RAPL")]) == Energy(3.0, "RAPL")
