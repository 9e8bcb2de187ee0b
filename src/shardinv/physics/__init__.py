"""Stacks of acquisition operators, each applied on the rank that owns it.

``operators`` builds and deals them, ``measurements`` is the list that knows its owners, ``noise``
draws the same noise for any number of ranks, ``stacked`` and ``linear`` are the stacks that solvers
see.
"""

from shardinv.physics.linear import DistributedStackedLinearPhysics
from shardinv.physics.measurements import OwnedMeasurements, RemoteEntryError
from shardinv.physics.operators import OwnedOperators
from shardinv.physics.stacked import DistributedStackedPhysics

__all__ = [
    "DistributedStackedLinearPhysics",
    "DistributedStackedPhysics",
    "OwnedMeasurements",
    "OwnedOperators",
    "RemoteEntryError",
]
