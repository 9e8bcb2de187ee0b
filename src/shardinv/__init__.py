"""Imaging inverse problems that are too large, or too slow, for one device.

A reconstruction alternates a physics step and a learned step. :func:`distribute` shares those two
building blocks out to the processes of ``torch.distributed``; the algorithm around them stays as it
is, and the same script runs with ``python``, ``torchrun`` and ``srun``.
"""

from importlib.metadata import PackageNotFoundError, version

from shardinv.context import DistributedContext
from shardinv.denoise import DistributedProcessing
from shardinv.distribute import distribute
from shardinv.exchange import DisagreementError, RankError
from shardinv.fidelity import DistributedDataFidelity
from shardinv.ledger import Ledger
from shardinv.physics import (
    DistributedStackedLinearPhysics,
    DistributedStackedPhysics,
    OwnedMeasurements,
    RemoteEntryError,
)
from shardinv.training import undistribute

try:
    __version__ = version("shardinv")
except PackageNotFoundError:  # used from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "DisagreementError",
    "DistributedContext",
    "DistributedDataFidelity",
    "DistributedProcessing",
    "DistributedStackedLinearPhysics",
    "DistributedStackedPhysics",
    "Ledger",
    "OwnedMeasurements",
    "RankError",
    "RemoteEntryError",
    "__version__",
    "distribute",
    "undistribute",
]
