"""What functions of torch do with sharded tensors, one module for each family.

``metadata`` answers from the wrapper, ``pointwise`` acts on the local part, ``reductions`` are
collective, ``shapes`` and ``indexing`` rearrange axes that are not cut, ``selection`` picks by a
mask, ``joining`` concatenates, ``linear_algebra`` multiplies flattened images, ``convolution``,
``pooling``, ``padding`` and ``resizing`` fetch halos, ``creation`` makes tensors like a given one,
``random`` draws, ``differentiation`` reaches autograd. Importing this package fills the table.
"""

from shardinv.tensor.rules import (
    convolution,
    creation,
    differentiation,
    indexing,
    joining,
    linear_algebra,
    metadata,
    padding,
    pointwise,
    pooling,
    random,
    reductions,
    resizing,
    selection,
    shapes,
)

__all__ = [
    "convolution",
    "creation",
    "differentiation",
    "indexing",
    "joining",
    "linear_algebra",
    "metadata",
    "padding",
    "pointwise",
    "pooling",
    "random",
    "reductions",
    "resizing",
    "selection",
    "shapes",
]
