"""How a training went, epoch by epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class History:
    """Of the epochs so far; PSNR in dB of all validation squares together, time in seconds.

    Parameters
    ----------
    start_db
        PSNR before training.
    baseline_db
        PSNR of the adjoint of the measurements, brought to the image's brightness.
    loss, psnr_db, seconds
        Mean squared error on the training squares, PSNR, duration of each epoch.
    """

    start_db: float = 0.0
    baseline_db: float = 0.0
    loss: list[float] = field(default_factory=list)
    psnr_db: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """How many are behind."""
        return len(self.loss)

    def add(self, loss: float, psnr_db: float, seconds: float) -> None:
        """Note one more epoch."""
        self.loss.append(loss)
        self.psnr_db.append(psnr_db)
        self.seconds.append(seconds)

    def state(self) -> dict[str, Any]:
        """Numbers and lists of them."""
        return asdict(self)
