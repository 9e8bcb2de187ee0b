"""Losses of ``deepinv.loss`` over the ranks: measurement consistency, SURE, EI, splitting.

``block`` makes a loss work over the ranks, ``randomness`` makes its draws rank 0's on every rank,
``entries`` evaluates it on a stack's measurements where they are, ``single`` lends one operator of
a stack to all ranks, ``transforms`` applies random transforms to sharded images, ``splitting``
splits measurements. The formulas stay DeepInverse's own.
"""

from shardinv.training.losses.block import distribute_loss

__all__ = ["distribute_loss"]
