"""What functions of torch do with sharded tensors, one module for each family.

``metadata`` answers from the wrapper, ``pointwise`` acts on the local part, ``reductions`` are
collective, ``shapes`` and ``indexing`` rearrange axes that are not cut, ``joining`` concatenates,
``creation`` makes tensors like a given one, ``differentiation`` reaches autograd. Importing this
package fills the table.
"""

from shardinv.tensor.rules import (
    creation,
    differentiation,
    indexing,
    joining,
    metadata,
    pointwise,
    reductions,
    shapes,
)

__all__ = [
    "creation",
    "differentiation",
    "indexing",
    "joining",
    "metadata",
    "pointwise",
    "reductions",
    "shapes",
]
