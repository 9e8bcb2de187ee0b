"""Blocks that are trained: replicated parameters and unrolled solvers."""

from shardinv.training.parameters import average_gradients
from shardinv.training.unrolled import distribute_unrolled

__all__ = ["average_gradients", "distribute_unrolled"]
