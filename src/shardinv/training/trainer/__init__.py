"""DeepInverse's ``Trainer`` over the ranks: one sample at a time, on which all of them work.

``noticing`` finds out that a trainer's model or operators are distributed, ``over_ranks`` is what
the trainer then does otherwise, ``loaders`` and ``randomness`` give every rank the same sample and
the same random draws.
"""

from shardinv.training.trainer.noticing import distribute_trainer

__all__ = ["distribute_trainer"]
