"""Stacks of acquisition operators, each applied on the rank that owns it.

``operators`` builds and deals them, ``measurements`` is the list that knows its owners, ``noise``
draws the same noise for any number of ranks, ``stacked`` is the operator that solvers see.
"""

from shardinv.physics.measurements import OwnedMeasurements, RemoteEntryError
from shardinv.physics.operators import OwnedOperators
from shardinv.physics.stacked import DistributedStackedLinearPhysics, DistributedStackedPhysics

__all__ = [
    "DistributedStackedLinearPhysics",
    "DistributedStackedPhysics",
    "OwnedMeasurements",
    "OwnedOperators",
    "RemoteEntryError",
]
