"""What to verify before one measures, or waits for, a distributed reconstruction.

Each file has one check: the numbers it needs, and what it says of them, as a ``Finding``. ``run``
puts them together on the ranks of a point. Nothing here prints.
"""
