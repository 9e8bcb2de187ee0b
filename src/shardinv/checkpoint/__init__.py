"""Checkpoints: what a run needs to go on, written by all ranks, whole or not at all.

``parts`` says what of a tensor lies where, ``tree`` what surrounds the tensors, ``planners`` which
rank writes and reads what, ``folder`` which checkpoints there are. The context's verbs are in
:mod:`shardinv.context.checkpoints`.
"""

from shardinv.checkpoint.errors import CheckpointError
from shardinv.checkpoint.loading import Loaded, Wanted, load, newest
from shardinv.checkpoint.ranks import on_all, on_main
from shardinv.checkpoint.saving import save

__all__ = ["CheckpointError", "Loaded", "Wanted", "load", "newest", "on_all", "on_main", "save"]
