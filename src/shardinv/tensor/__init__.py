"""The sharded tensor: one image, of which every rank holds a box.

``sharding`` says which boxes, ``sharded`` is the tensor, ``transfer`` moves between layouts,
``rules`` say what functions of torch do with it. Blocks that need a neighbourhood or the whole
image fetch it themselves and are in the layers above.
"""

from shardinv.tensor import rules as rules
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.factories import sharded_factories
from shardinv.tensor.registry import rule
from shardinv.tensor.rules.random import CounterRandom
from shardinv.tensor.sharded import ShardedTensor
from shardinv.tensor.sharding import Sharding
from shardinv.tensor.transfer import (
    begin_boxes,
    deliver,
    fetch_boxes,
    fetch_tied,
    gather,
    realign,
    scatter,
)

__all__ = [
    "CounterRandom",
    "LayoutError",
    "ShardedTensor",
    "Sharding",
    "UnsupportedOperation",
    "begin_boxes",
    "deliver",
    "fetch_boxes",
    "fetch_tied",
    "gather",
    "realign",
    "rule",
    "scatter",
    "sharded_factories",
]
