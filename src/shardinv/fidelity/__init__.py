"""Data-fidelity terms of a distributed stack: their values, gradients and proximal operators.

``fidelity`` sums one term an operator over the ranks, ``posterior`` has the guidance terms of
diffusion samplers that are not such a sum, ``proximal`` solves for the terms without closed form.
"""

from shardinv.fidelity.fidelity import DistributedDataFidelity

__all__ = ["DistributedDataFidelity"]
