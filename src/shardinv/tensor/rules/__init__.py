"""What functions of torch do with sharded tensors, one module for each family.

``metadata`` answers from the wrapper, ``pointwise`` acts on the local part, ``reductions`` are
collective, ``shapes`` and ``indexing`` rearrange axes that are not cut, ``selection`` picks by a
mask, ``joining`` concatenates, ``linear_algebra`` multiplies flattened images, ``neighbourhood``
fetches halos, ``creation`` makes tensors like a given one, ``random`` draws, ``differentiation``
reaches autograd. Importing this package fills the table.
"""

from shardinv.tensor.rules import (
    creation,
    differentiation,
    indexing,
    joining,
    linear_algebra,
    metadata,
    neighbourhood,
    pointwise,
    random,
    reductions,
    selection,
    shapes,
)

__all__ = [
    "creation",
    "differentiation",
    "indexing",
    "joining",
    "linear_algebra",
    "metadata",
    "neighbourhood",
    "pointwise",
    "random",
    "reductions",
    "selection",
    "shapes",
]
