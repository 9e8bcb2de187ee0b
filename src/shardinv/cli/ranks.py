"""What commands say of ranks: where they compute, who holds images, how long they wait."""

from __future__ import annotations

import os
from enum import StrEnum

from shardinv import DistributedContext

# Rank 0 may compute or draw something alone for minutes, while the others wait.
_TIMEOUT_SECONDS = 1800.0


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class Layout(StrEnum):
    """Who holds the image."""

    replicated = "replicated"
    sharded = "sharded"


def open_context(seed: int, device: Device) -> DistributedContext:
    """The context of a command's ranks, which wait longer for each other than a script's."""
    return DistributedContext(
        seed=seed,
        device_mode=None if device is Device.auto else device.value,
        timeout=None if "SHARDINV_TIMEOUT" in os.environ else _TIMEOUT_SECONDS,
    )
