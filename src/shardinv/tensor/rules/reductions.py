"""Sums, norms, extremes and comparisons: collective, with plain results, the same on every rank.

A reduction over axes that are not cut stays sharded and sends nothing. Each collective is
differentiable to any order.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from shardinv.exchange import TensorSpec, all_reduce, same_need, sum_over_ranks
from shardinv.tensor.axes import cut_axes, normalise, reduces_over_ranks
from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.operands import common_layout, local_part
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.rules.pointwise import pointwise
from shardinv.tensor.sharded import ShardedTensor

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = dict[str, Any]


_ALIASES = {"axis": "dim", "keepdims": "keepdim", "input": "x", "self": "x"}


def bind(signature: Callable[..., Any], args: Arguments, kwargs: Options) -> Options:
    """The arguments by name, defaults filled in; ``axis`` and ``input`` are other names."""
    renamed = {_ALIASES.get(k, k): v for k, v in kwargs.items()}
    if renamed.pop("out", None) is not None:
        raise UnsupportedOperation("a reduction of a sharded tensor takes no out=")
    bound = inspect.signature(signature).bind(*args, **renamed)
    bound.apply_defaults()
    return dict(bound.arguments)


def in_box(
    x: ShardedTensor, local: torch.Tensor, dims: tuple[int, ...], keepdim: bool
) -> ShardedTensor:
    """The result of a reduction over axes that are not cut."""
    trailing = x.trailing
    if trailing and not keepdim:
        trailing -= sum(dim >= x.ndim - x.trailing for dim in dims)
    return ShardedTensor(local, x.sharding, trailing, x.folded)


def total(x: ShardedTensor, partial: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' parts: plain, replicated, differentiable."""
    comm = x.sharding.comm
    same_need(comm, "a sharded tensor", TensorSpec.of(partial), partial.requires_grad)
    return sum_over_ranks(comm, partial, torch.zeros((), device=comm.device))


# -- sums ------------------------------------------------------------------------------------------


def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> None: ...


@rule(*named("sum nansum", torch, torch.Tensor))
def summed(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The sum over axes."""
    given = bind(_sum, args, kwargs)
    x, keepdim = given["x"], given["keepdim"]
    dims = normalise(given["dim"], x.ndim)
    local = function(x.to_local(), dim=dims, keepdim=keepdim, dtype=given["dtype"])
    if not reduces_over_ranks(function, x, dims):
        return in_box(x, local, dims, keepdim)
    return total(x, local)


@rule(*named("mean", torch, torch.Tensor))
def mean(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The mean over axes."""
    given = bind(_sum, args, kwargs)
    x, keepdim, dtype = given["x"], given["keepdim"], given["dtype"]
    dims = normalise(given["dim"], x.ndim)
    if not (dtype or x.dtype).is_floating_point and not (dtype or x.dtype).is_complex:
        raise RuntimeError(
            f"mean(): could not infer output dtype: a mean needs floating-point numbers, got "
            f"{x.dtype}"
        )
    if not reduces_over_ranks(function, x, dims):
        local = x.to_local().mean(dims, keepdim, dtype=dtype)
        return in_box(x, local, dims, keepdim)
    return total(x, x.to_local().sum(dims, keepdim, dtype=dtype)) / _count(x, dims)


def _count(x: ShardedTensor, dims: tuple[int, ...]) -> int:
    return math.prod(x.shape[dim] for dim in dims)


@rule(*named("count_nonzero", torch, torch.Tensor))
def count_nonzero(function: Function, args: Arguments, kwargs: Options) -> Any:
    """How many values are not zero."""
    given = bind(_sum, args, kwargs)
    return (given["x"] != 0).sum(given["dim"])


def _var(
    x: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> None: ...


@rule(*named("var std var_mean std_mean", torch, torch.Tensor))
def variance(function: Function, args: Arguments, kwargs: Options) -> Any:
    """Variances and standard deviations, from the deviations from the mean: two collectives."""
    if len(args) == 2 and isinstance(args[1], bool):
        x, unbiased = args
        args, kwargs = (x,), {**kwargs, "unbiased": unbiased}
    given = bind(_var, args, kwargs)
    x, keepdim = given["x"], given["keepdim"]
    dims = normalise(given["dim"], x.ndim)
    correction = given["correction"]
    if correction is None:
        correction = 1 if given["unbiased"] in (None, True) else 0
    name = name_of(function).split(".")[-1]
    centre = x.mean(dims, keepdim=True)
    deviation = x - centre
    square = (deviation * deviation.conj()).real if x.is_complex() else deviation * deviation
    result = square.sum(dims, keepdim=keepdim) / max(_count(x, dims) - correction, 0)
    if name.startswith("std"):
        result = result.sqrt()
    if not name.endswith("mean"):
        return result
    return result, centre if keepdim else x.mean(dims)


# -- norms -----------------------------------------------------------------------------------------


def _norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> None: ...
def _frobenius(
    x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> None: ...


@rule(torch.linalg.vector_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm)
def norm(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The norm of all values along axes, as of one vector."""
    if function in (torch.norm, torch.Tensor.norm):
        given = bind(_frobenius, args, kwargs)
        order = given["p"]
    else:
        given = bind(_norm, args, kwargs)
        order = given["ord"]
        if function is torch.linalg.norm and "ord" not in kwargs and len(args) < 2:
            order = None
        several = not (given["dim"] is None or isinstance(given["dim"], int))
        matrix = function is torch.linalg.norm and order is not None and several
        if function is torch.linalg.norm and order is not None and given["dim"] is None:
            matrix = given["x"].ndim != 1
        if matrix:
            raise UnsupportedOperation(
                f"a matrix norm of a sharded tensor {tuple(given['x'].shape)} has no rule; "
                "torch.linalg.vector_norm has"
            )
    if isinstance(order, str) and order != "fro":
        raise UnsupportedOperation(f"the norm {order!r} of a sharded tensor has no rule")
    order = 2.0 if order in (None, "fro", 2) else float(order)
    x, keepdim = given["x"], given["keepdim"]
    if not (x.is_floating_point() or x.is_complex()):
        raise RuntimeError(
            f"{name_of(function)}: expected a floating point or complex tensor, got {x.dtype}"
        )
    dims = normalise(given["dim"], x.ndim)
    local = x.to_local()
    if given["dtype"] is not None:
        local = local.to(given["dtype"])
    if not reduces_over_ranks(function, x, dims):
        result = torch.linalg.vector_norm(local, order, dims, keepdim)
        return in_box(x, result, dims, keepdim)
    if math.isinf(order):
        magnitude = x.like(local).abs()
        return (
            torch.amax(magnitude, dims, keepdim)
            if order > 0
            else torch.amin(magnitude, dims, keepdim)
        )
    if order == 0:
        return (x != 0).sum(dims, keepdim=keepdim).to(local.real.dtype)
    if order == 1:
        return total(x, torch.linalg.vector_norm(local, 1, dims, keepdim))
    if order == 2:
        # Of products, not of the norm: that has no second derivative where it is zero.
        square = (local * local.conj()).real if local.is_complex() else local * local
    else:
        square = local.abs() ** order
    power = total(x, square.sum(dims, keepdim))
    # At zero the root has no derivative; torch's norm has 0 there.
    zero = power == 0
    root = torch.where(zero, torch.ones_like(power), power)
    root = root.sqrt() if order == 2 else root ** (1 / order)
    return torch.where(zero, torch.zeros_like(root), root)


# -- extremes --------------------------------------------------------------------------------------


def _extreme(x: Any, dim: Any = None, keepdim: bool = False) -> None: ...


@rule(*named("amax amin", torch, torch.Tensor))
def extreme(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The largest or smallest value along axes; equal ones share the gradient."""
    given = bind(_extreme, args, kwargs)
    x, keepdim = given["x"], given["keepdim"]
    dims = normalise(given["dim"], x.ndim)
    local = x.to_local()
    if not reduces_over_ranks(function, x, dims):
        return in_box(x, function(local, dims, keepdim), dims, keepdim)
    largest = "amax" in name_of(function)
    found = _extreme_over_ranks(x, local.detach(), dims, largest)
    if not (local.requires_grad and torch.is_grad_enabled()):
        return found if keepdim else found.squeeze(dims)
    equal = local == found
    count = total(x, equal.sum(dims, keepdim=True)).to(local.dtype)
    # The values add up to count times the extreme: taken away again, only their gradient is left.
    carried = total(x, torch.where(equal, local, 0).sum(dims, keepdim=True)) / count
    result = torch.where(found.isfinite(), found + (carried - carried.detach()), carried)
    return result if keepdim else result.squeeze(dims)


def _extreme_over_ranks(
    x: ShardedTensor, local: torch.Tensor, dims: tuple[int, ...], largest: bool
) -> torch.Tensor:
    if local.numel():
        partial = local.amax(dims, True) if largest else local.amin(dims, True)
    else:
        shape = [1 if dim in dims else n for dim, n in enumerate(local.shape)]
        partial = local.new_full(shape, _bound(local.dtype, largest))
    flags = partial.dtype == torch.bool
    comm, op = x.sharding.comm, "max" if largest else "min"
    if not partial.is_floating_point():
        wired = partial.to(torch.uint8) if flags else partial
        wired = all_reduce(comm, wired.contiguous(), op)
        return wired.bool() if flags else wired
    # Libraries differ in what the extreme of a NaN and a number is: it travels as a mark beside.
    lost = partial.isnan()
    mark = lost.to(partial.dtype) * (1 if largest else -1)
    values, marks = all_reduce(
        comm, torch.stack([partial.masked_fill(lost, _bound(local.dtype, largest)), mark]), op
    )
    return values.masked_fill(marks != 0, math.nan)


def _bound(dtype: torch.dtype, largest: bool) -> float | int | bool:
    """What no value is beyond, on the side that an extreme starts from."""
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return -math.inf if largest else math.inf
    info = torch.iinfo(dtype)
    return info.min if largest else info.max


@rule(*named("max min", torch, torch.Tensor))
def max_or_min(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The extreme of all values, of two tensors, or along an axis that is not cut."""
    largest = name_of(function).endswith("max")
    second = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("dim"))
    if isinstance(second, torch.Tensor):
        return pointwise(torch.maximum if largest else torch.minimum, (args[0], second), {})
    if second is None:
        return extreme(torch.amax if largest else torch.amin, args, {})
    given = bind(_extreme, args, kwargs)
    x, keepdim = given["x"], given["keepdim"]
    dims = normalise(second, x.ndim)
    if reduces_over_ranks(function, x, dims):
        raise UnsupportedOperation(
            f"{name_of(function)} along a cut axis would give positions in the whole image; "
            "torch.amax and torch.amin give the values"
        )
    values, indices = function(x.to_local(), second, keepdim)
    kind = torch.return_types.max if largest else torch.return_types.min
    return kind((in_box(x, values, dims, keepdim), in_box(x, indices, dims, keepdim)))


@rule(*named("aminmax", torch, torch.Tensor))
def both_extremes(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The smallest and the largest of all values."""
    return torch.return_types.aminmax((args[0].min(), args[0].max()))


@rule(*named("all any", torch, torch.Tensor))
def quantified(function: Function, args: Arguments, kwargs: Options) -> Any:
    """Whether all, or any, values along axes are true."""
    given = bind(_extreme, args, kwargs)
    x, keepdim = given["x"], given["keepdim"]
    dims = normalise(given["dim"], x.ndim)
    local = x.to_local()
    for_all = name_of(function).endswith("all")
    if not reduces_over_ranks(function, x, dims):
        return in_box(x, function(local, dims, keepdim), dims, keepdim)
    partial = (torch.all if for_all else torch.any)(local, dims, keepdim)
    counts = all_reduce(
        x.sharding.comm, partial.to(torch.uint8).contiguous(), "min" if for_all else "max"
    )
    return counts.bool()


# -- of two tensors --------------------------------------------------------------------------------


@rule(*named("dot vdot inner", torch, torch.Tensor), torch.linalg.vecdot)
def inner_product(function: Function, args: Arguments, kwargs: Options) -> Any:
    """The inner product along the last axis, into which the spatial ones are folded."""
    a, b = args[:2]
    lead = common_layout(function, a, b)
    dim: int = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    last = dim % lead.ndim == lead.ndim - 1
    if lead.folded is None or not last:
        raise UnsupportedOperation(
            f"{name_of(function)} of sharded images: flatten them first (x.flatten(1)), or sum the "
            "product"
        )
    if function is not torch.linalg.vecdot and (a.ndim > 1 or b.ndim > 1):
        raise UnsupportedOperation(
            f"{name_of(function)} of flattened images is for vectors (x.flatten()); got "
            f"{tuple(a.shape)} and {tuple(b.shape)}"
        )
    first, second = (local_part(function, t, lead) for t in (a, b))
    conjugate = name_of(function).endswith(("vdot", "vecdot"))
    return total(lead, ((first.conj() if conjugate else first) * second).sum(-1))


@rule(*named("equal", torch, torch.Tensor))
def equal(function: Function, args: Arguments, kwargs: Options) -> bool:
    """Whether two tensors are equal everywhere, on every rank."""
    a, b = (*args, *kwargs.values())
    if tuple(a.shape) != tuple(b.shape):
        return False
    return bool((a == b).all())


@rule(*named("allclose", torch, torch.Tensor))
def allclose(function: Function, args: Arguments, kwargs: Options) -> bool:
    """Whether two tensors are close everywhere, on every rank."""
    return bool(torch.isclose(*args, **kwargs).all())


# -- along an axis that is not cut -----------------------------------------------------------------


def _along(x: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> None: ...


@rule(*named("prod argmax argmin logsumexp median nanmedian quantile", torch, torch.Tensor))
def reduced_in_box(function: Function, args: Arguments, kwargs: Options) -> Any:
    """Reductions that have a rule along axes that are not cut only."""
    if name_of(function).endswith("quantile"):
        x, q, *rest = args
        options = {k: v for k, v in kwargs.items() if k not in ("dim", "keepdim")}
        given = bind(_along, (x, *rest), {k: kwargs[k] for k in kwargs if k in ("dim", "keepdim")})
        given["options"] = options
        positional: Arguments = (q,)
        if isinstance(q, torch.Tensor) and q.ndim:
            raise UnsupportedOperation("quantiles of a sharded tensor are taken one at a time")
    else:
        given, positional = bind(_along, args, kwargs), ()
    x, dim, keepdim = given["x"], given["dim"], given["keepdim"]
    dims = normalise(dim, x.ndim)
    if dim is None or reduces_over_ranks(function, x, dims):
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded tensor {tuple(x.shape)} along axes {dims}, which "
            "are cut, has no rule. Gather the image first (ctx.gather(x))"
        )
    result = function(x.to_local(), *positional, dim, keepdim, **given.get("options", {}))
    if isinstance(result, tuple):
        return type(result)([in_box(x, part, dims, keepdim) for part in result])
    return in_box(x, result, dims, keepdim)


@rule(
    *named("cumsum cumprod softmax log_softmax sort argsort topk cummax cummin", torch),
    *named("cumsum cumprod softmax log_softmax sort argsort topk cummax cummin", torch.Tensor),
    *named("softmax log_softmax softmin glu", torch.nn.functional),
)
def along_axis(function: Function, args: Arguments, kwargs: Options) -> Any:
    """Functions of the values along one axis, which must not be cut."""
    x: ShardedTensor = args[0] if args else kwargs["input"]
    name = name_of(function).split(".")[-1]
    place = 2 if name == "topk" else 1
    if name in ("sort", "argsort") and len(args) > 1 and isinstance(args[1], bool):
        raise UnsupportedOperation(f"{name} of a sharded tensor: give dim= by name")
    dim = kwargs.get("dim", args[place] if len(args) > place else -1)
    if dim is None or dim % x.ndim in cut_axes(x):
        raise UnsupportedOperation(
            f"{name_of(function)} of a sharded tensor {tuple(x.shape)} along axis {dim}: axes "
            f"{cut_axes(x)} are cut. Gather the image first (ctx.gather(x))"
        )
    options = {k: v for k, v in kwargs.items() if k != "input"}
    result = function(x.to_local(), *args[1:], **options)
    if isinstance(result, tuple):
        return type(result)([x.like(part) for part in result])
    return x.like(result)


# -- losses ----------------------------------------------------------------------------------------


@rule(*named("mse_loss l1_loss smooth_l1_loss huber_loss", torch.nn.functional))
def loss(function: Function, args: Arguments, kwargs: Options) -> Any:
    """A penalty on each pixel's difference, and its mean or sum."""
    reduction = kwargs.get("reduction", "mean")
    averaged = [kwargs.get(name) for name in ("size_average", "reduce")]
    if any(flag is not None for flag in averaged) or len(args) > 2:
        raise UnsupportedOperation(f"{name_of(function)} of sharded tensors: give reduction= only")
    options = {k: v for k, v in kwargs.items() if k not in ("size_average", "reduce")}
    values = pointwise(function, args, {**options, "reduction": "none"})
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


@rule(torch.nn.functional.normalize)
def normalised(function: Function, args: Arguments, kwargs: Options) -> Any:
    """Vectors along axes over their norms."""
    names = ("x", "p", "dim", "eps")
    given = {"p": 2.0, "dim": 1, "eps": 1e-12, **dict(zip(names, args, strict=False)), **kwargs}
    x = given.get("x", given.get("input"))
    length = torch.linalg.vector_norm(x, given["p"], given["dim"], keepdim=True)
    return x / length.clamp_min(given["eps"])
