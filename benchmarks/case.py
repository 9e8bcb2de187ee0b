"""What is measured: a problem, a tiling and a number of ranks, in one system."""

from __future__ import annotations

from dataclasses import dataclass

OURS, PEER, PLAIN = "shardinv", "deepinv.distributed", "deepinv"
SHARDED = "shardinv sharded"
LAYOUTS = {"replicated": OURS, "sharded": SHARDED}


@dataclass(frozen=True)
class Tiling:
    """Tile, halo and most tiles a call: ``256/64``, or ``256/64x4`` with at most four."""

    patch_size: int
    overlap: int
    max_batch_size: int | None = None

    @classmethod
    def parse(cls, text: str) -> Tiling:
        """Read ``PATCH/OVERLAP[xBATCH]``."""
        sizes, _, batch = text.partition("x")
        patch, slash, overlap = sizes.partition("/")
        if not slash or not all(part.isdecimal() for part in (patch, overlap, batch or "1")):
            raise ValueError(f"a tiling is PATCH/OVERLAP or PATCH/OVERLAPxBATCH, got {text!r}")
        return cls(int(patch), int(overlap), int(batch) if batch else None)

    def __str__(self) -> str:
        batch = f"x{self.max_batch_size}" if self.max_batch_size else ""
        return f"{self.patch_size}/{self.overlap}{batch}"


@dataclass(frozen=True)
class Case:
    """One problem on a number of ranks. ``tiling`` is None for the undistributed reference."""

    network: str
    size: int
    ranks: int
    tiling: Tiling | None


@dataclass(frozen=True)
class Run:
    """One measurement: fresh processes that run a case in one system.

    ``iterations`` are timed, after ``warm_up`` ones that are not.
    """

    system: str
    case: Case
    iterations: int
    warm_up: int
