"""Products of flattened images with each other and with small matrices.

Over the pixels a product is one small all-reduce, over other axes it is local. Anderson
acceleration lives on these: ``(b, m, n) @ (b, n, m)`` and ``(b, 1, m) @ (b, m, n)`` with n pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardinv.tensor.axes import cut_axes
from shardinv.tensor.columns import Columns
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import common_layout, local_part, shared_operand
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.rules.reductions import total
from shardinv.tensor.rules.shapes import transpose
from shardinv.tensor.sharded import ShardedTensor

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = dict[str, Any]


@rule(*named("matmul bmm mm mv __matmul__", torch, torch.Tensor), torch.linalg.matmul)
def product(function: Function, args: Arguments, kwargs: Options) -> Any:
    """A matrix product of flattened images."""
    if kwargs.get("out") is not None:
        raise UnsupportedOperation(f"{name_of(function)} of sharded tensors takes no out=")
    a, b = [*args, *kwargs.values()][:2]
    for operand in (a, b):
        if isinstance(operand, ShardedTensor) and operand.folded is None:
            raise UnsupportedOperation(
                f"{name_of(function)} of a sharded image {tuple(operand.shape)}, whose spatial "
                f"axes {cut_axes(operand)} are cut: flatten them into one first (x.flatten(1)), "
                "use torch.einsum over other axes, or gather the image (ctx.gather(x))"
            )
    if isinstance(a, Columns):
        if isinstance(b, (Columns, ShardedTensor)):
            raise UnsupportedOperation(
                f"{name_of(function)} of {tuple(a.shape)} and {tuple(b.shape)} would have a row "
                "and a column for each pixel"
            )
        if b.ndim < 2:
            return product(torch.matmul, (b, a.rows), {})
        return Columns(product(torch.matmul, (b.mT, a.rows), {}))
    if isinstance(a, ShardedTensor):
        if isinstance(b, Columns):
            return _over_pixels(function, a, b.rows, lambda one, other: one @ other.mT)
        if isinstance(b, ShardedTensor) and b.ndim == 1:
            return _over_pixels(function, a, b, lambda one, other: (one * other).sum(-1))
        found = "flattened images" if isinstance(b, ShardedTensor) else "a replicated tensor"
        raise LayoutError(
            f"{name_of(function)} of flattened images {tuple(a.shape)} with {found} "
            f"{tuple(b.shape)}: over the pixels, the product is with transposed flattened images "
            "(a @ b.transpose(-1, -2))"
        )
    if isinstance(b, Columns):
        raise LayoutError(
            f"{name_of(function)} of a replicated tensor {tuple(a.shape)}, as long as the image "
            f"has pixels, with flattened images {tuple(b.shape)}: shard and flatten it too"
        )
    if b.ndim == 1:
        raise LayoutError(
            f"{name_of(function)} of a replicated matrix {tuple(a.shape)} with a flattened image: "
            "the matrix has a column for each pixel"
        )
    local = shared_operand(a, b) @ b.to_local()
    return ShardedTensor(local, b.sharding, folded=b.folded)


@rule(torch.Tensor.__rmatmul__)
def product_reversed(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The product with the operands in the other order."""
    return product(torch.Tensor.__matmul__, (args[1], args[0]), kwargs)


def _over_pixels(
    function: Function,
    a: ShardedTensor,
    b: ShardedTensor,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    lead = common_layout(function, a, b)
    return total(lead, multiply(local_part(function, a, lead), local_part(function, b, lead)))


# -- transposed ------------------------------------------------------------------------------------


@rule(
    *(getattr(torch.Tensor, name).__get__ for name in ("mT", "mH")),
    *named("adjoint", torch, torch.Tensor),
)
def matrix_transposed(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The last two axes exchanged."""
    x = args[0]
    conjugate = name_of(function).split(".")[-1] in ("mH", "adjoint")
    if isinstance(x, Columns):
        return x.rows.conj() if conjugate else x.rows
    return transpose(function, (x.conj() if conjugate else x, -1, -2), {})


# -- any product of axes ---------------------------------------------------------------------------


@rule(torch.einsum)
def einsum(function: Function, args: Arguments, kwargs: Options) -> Any:
    """A sum of products: over all spatial axes (one all-reduce), or over none (local).

    Spatial axes must have the same letters in all sharded operands, and none in replicated ones.
    """
    equation, *rest = args
    operands = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    if not isinstance(equation, str) or "." in equation:
        raise UnsupportedOperation(
            f"einsum of sharded tensors takes an equation of letters alone, got {equation!r}"
        )
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "->" not in equation:
        output = "".join(sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1))
    lead = common_layout(function, operands)
    spatial = ""
    for term, operand in zip(terms, operands, strict=True):
        if isinstance(operand, ShardedTensor):
            letters = "".join(term[axis] for axis in cut_axes(operand))
            if spatial and letters != spatial:
                _refuse_einsum(equation, "the spatial axes of all sharded operands have one name")
            spatial = letters
    for term, operand in zip(terms, operands, strict=True):
        if not isinstance(operand, ShardedTensor) and set(term) & set(spatial):
            _refuse_einsum(equation, f"the replicated {tuple(operand.shape)} varies in space")
    locals_ = [
        local_part(function, operand, lead)
        if isinstance(operand, ShardedTensor)
        else shared_operand(operand, lead)
        for operand in operands
    ]
    local = torch.einsum(equation, *locals_)
    if not set(spatial) & set(output):
        return total(lead, local)
    start = output.find(spatial)
    if start < 0:
        _refuse_einsum(equation, "the result has all spatial axes, in their order, or none")
    trailing = len(output) - start - len(spatial)
    return ShardedTensor(local, lead.sharding, trailing, lead.folded)


def _refuse_einsum(equation: str, why: str) -> Any:
    raise UnsupportedOperation(f"einsum {equation!r} of sharded tensors: {why}")


@rule(torch.nn.functional.cosine_similarity)
def cosine_similarity(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The cosine of the angle between vectors along an axis."""
    names = ("x1", "x2", "dim", "eps")
    given = {"dim": 1, "eps": 1e-8, **dict(zip(names, args, strict=False)), **kwargs}
    a, b, dim = given["x1"], given["x2"], given["dim"]
    lengths = [(t * t).sum(dim).sqrt().clamp(min=given["eps"]) for t in (a, b)]
    return (a * b).sum(dim) / (lengths[0] * lengths[1])
