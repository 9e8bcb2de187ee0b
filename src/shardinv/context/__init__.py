"""Where a program runs: which ranks there are, on which devices, and what ends them.

``environment`` reads what the launcher left, ``rendezvous`` keeps the store through which the ranks
meet, ``failure`` carries one rank's exception to the others, ``context`` puts them together into
:class:`DistributedContext`.
"""

from shardinv.context.context import DistributedContext

__all__ = ["DistributedContext"]
