"""Acquisition operators over the ranks: by operator, or by space.

By operator, each is applied on the rank that owns it: ``operators`` builds and deals them,
``measurements`` is the list that knows its owners, ``stacked`` and ``linear`` are the stacks that
solvers see. By space, each rank applies all of them to its box: ``space``. ``choice`` is a stack
that does either, as the image lies, and ``build`` decides which block operators become. ``noise``
draws the same noise for any number of ranks; ``summing`` and ``solving`` serve both ways.
"""

from shardinv.physics.choice import DistributedStackByLayout
from shardinv.physics.linear import DistributedStackedLinearPhysics
from shardinv.physics.measurements import OwnedMeasurements, RemoteEntryError
from shardinv.physics.operators import OwnedOperators
from shardinv.physics.space import DistributedLocalPhysics, DistributedLocalStack
from shardinv.physics.stacked import DistributedStackedPhysics

__all__ = [
    "DistributedLocalPhysics",
    "DistributedLocalStack",
    "DistributedStackByLayout",
    "DistributedStackedLinearPhysics",
    "DistributedStackedPhysics",
    "OwnedMeasurements",
    "OwnedOperators",
    "RemoteEntryError",
]
