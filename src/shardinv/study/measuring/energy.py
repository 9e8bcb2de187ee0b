"""Energy that processors and GPUs have used, where the hardware counts it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from shardinv.study.measurement import Energy

_POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts from its making on.

    A GPU's energy is that of its own rank's device. A processor's is that of the whole host, so one
    rank of each host must count it.

    Parameters
    ----------
    gpu
        Whether the current GPU is meant; else this host's processors.
    folder
        Where Linux shows the processors' counters (RAPL).
    """

    def __init__(self, gpu: bool = False, folder: Path = _POWERCAP) -> None:
        self._gpu, self._folder = gpu, folder
        self._before = self._read()

    def used(self) -> Energy | None:
        """Energy since then; None where nothing counts it."""
        now = self._read()
        if not self._before or now.keys() != self._before.keys():
            return None
        joules = 0.0
        for name, (value, limit) in now.items():
            step = value - self._before[name][0]
            joules += step if step >= 0 else step + limit  # the counter began anew
        return Energy(joules, "NVML" if self._gpu else "RAPL")

    def _read(self) -> dict[str, tuple[float, float]]:
        """Each counter's value and its range, in joules."""
        return _gpu_counter() if self._gpu else _packages(self._folder)


def _packages(folder: Path) -> dict[str, tuple[float, float]]:
    found = {}
    # Packages are intel-rapl:0, :1, ...; their parts (cores, memory) intel-rapl:0:0 are in them.
    for package in sorted(folder.glob("intel-rapl:*")):
        if package.name.count(":") == 1:
            with suppress(OSError, ValueError):
                energy = int((package / "energy_uj").read_text())
                limit = int((package / "max_energy_range_uj").read_text())
                found[package.name] = energy / 1e6, limit / 1e6
    return found


def _gpu_counter() -> dict[str, tuple[float, float]]:
    try:
        import pynvml
    except ImportError:
        return {}
    # CUDA's numbers aren't NVML's where some devices are hidden; the address is the same in both.
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
        return {"gpu": (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, 0.0)}
    except pynvml.NVMLError:
        return {}


def total(energies: Sequence[Energy]) -> Energy | None:
    """All of them together; None where there is none."""
    if not energies:
        return None
    return Energy(sum(energy.joules for energy in energies), energies[0].source)
