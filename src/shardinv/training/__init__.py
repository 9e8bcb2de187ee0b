"""Algorithms as blocks: solvers and samplers, unrolled ones, parameters that are trained."""

from shardinv.training.losses import distribute_loss
from shardinv.training.parameters import average_gradients
from shardinv.training.solvers import SOLVERS, distribute_solver
from shardinv.training.trainer import distribute_trainer
from shardinv.training.undistribute import undistribute
from shardinv.training.unrolled import distribute_unrolled, is_unrolled

__all__ = [
    "SOLVERS",
    "average_gradients",
    "distribute_loss",
    "distribute_solver",
    "distribute_trainer",
    "distribute_unrolled",
    "is_unrolled",
    "undistribute",
]
