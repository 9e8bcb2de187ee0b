"""Messages between ranks: the only place in the package that calls a collective or a send.

``communicator`` knows the group, ``collectives`` and ``moving`` send bytes and book them in the
ledger, ``verbs`` makes the same operations differentiable, ``agreement`` compares small facts
between ranks. What to send to whom is worked out in :mod:`shardinv.geometry`; why, in the blocks
above.
"""

from shardinv.exchange.agreement import FirstUse, agree, publish, same_need
from shardinv.exchange.collectives import (
    all_reduce,
    barrier,
    broadcast,
    broadcast_tensors,
    gather_boxes,
    gather_tensors,
)
from shardinv.exchange.communicator import Communicator, FailureSource
from shardinv.exchange.errors import DisagreementError, RankError
from shardinv.exchange.hosts import host_identity, host_of_ranks
from shardinv.exchange.moving import Move, move, start_move
from shardinv.exchange.store import wait_for_key
from shardinv.exchange.tensors import TensorSpec, crop
from shardinv.exchange.verbs import (
    assemble,
    begin_fetch,
    cut_boxes,
    fan_out,
    fetch,
    gather_list,
    sum_over_ranks,
)

__all__ = [
    "Communicator",
    "DisagreementError",
    "FailureSource",
    "FirstUse",
    "Move",
    "RankError",
    "TensorSpec",
    "agree",
    "all_reduce",
    "assemble",
    "barrier",
    "begin_fetch",
    "broadcast",
    "broadcast_tensors",
    "crop",
    "cut_boxes",
    "fan_out",
    "fetch",
    "gather_boxes",
    "gather_list",
    "gather_tensors",
    "host_identity",
    "host_of_ranks",
    "move",
    "publish",
    "same_need",
    "start_move",
    "sum_over_ranks",
    "wait_for_key",
]
