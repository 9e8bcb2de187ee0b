"""Functions that act on each pixel by itself: they act on the local part, without a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import common_layout, local_part, swap_tensors
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.sharded import ShardedTensor, refresh

_BOTH = """
abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2
arctanh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp
clamp_max clamp_min clip clone conj conj_physical copysign cos cosh deg2rad detach digamma div
divide eq erf erfc erfinv exp exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac ge
greater greater_equal gt heaviside hypot i0 igamma igammac isclose isfinite isinf isnan isneginf
isposinf isreal ldexp le lerp less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2
logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mul multiply
mvlgamma nan_to_num ne neg negative nextafter not_equal polygamma positive pow rad2deg real
reciprocal relu remainder resolve_conj resolve_neg round rsqrt rsub sgn sigmoid sign signbit sin
sinc sinh sqrt square sub subtract tan tanh true_divide trunc where xlogy
"""
_IN_PLACE = """
abs_ add_ addcdiv_ addcmul_ ceil_ clamp_ clamp_max_ clamp_min_ clip_ conj_physical_ copy_ cos_ div_
divide_ exp_ exp2_ expm1_ fill_ floor_ fmod_ lerp_ log_ log1p_ logical_and_ logical_not_
logical_or_ masked_fill_ mul_ multiply_ nan_to_num_ neg_ negative_ pow_ reciprocal_ relu_ remainder_
round_ rsqrt_ sigmoid_ sign_ sgn_ sin_ sqrt_ square_ sub_ subtract_ tanh_ true_divide_ trunc_ zero_
__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__
"""
_METHODS = """
__abs__ __add__ __and__ __div__ __eq__ __floordiv__ __ge__ __gt__ __invert__ __le__ __lt__ __mod__
__mul__ __ne__ __neg__ __or__ __pos__ __pow__ __radd__ __rand__ __rdiv__ __rfloordiv__ __rmod__
__rmul__ __ror__ __rpow__ __rsub__ __rtruediv__ __rxor__ __sub__ __truediv__ __xor__ bfloat16 bool
byte cdouble cfloat chalf contiguous double float half int long short
"""
_ACTIVATIONS = """
celu elu elu_ gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu leaky_relu_ logsigmoid mish
relu relu_ relu6 selu sigmoid silu softplus softshrink softsign tanh tanhshrink threshold
celu_ selu_ hardtanh_ threshold_
"""
_SPECIAL = """
digamma entr i1e log_ndtr psi round erf erfc erfinv expit exp2 expm1 gammaln i0 i0e i1 log1p logit
 ndtr ndtri sinc xlogy
"""

_in_place = set(named(_IN_PLACE, torch, torch.Tensor))
_in_place.update(named((f"{name}_" for name in _BOTH.split()), torch, torch.Tensor))


@rule(
    *named(_BOTH, torch, torch.Tensor),
    *named(_METHODS, torch.Tensor),
    *named("complex polar imag real threshold", torch),
    *named(_ACTIVATIONS, F, torch._C._nn),
    *named(_SPECIAL, torch.special),
    *_in_place,
    *(getattr(torch.Tensor, name).__get__ for name in ("real", "imag", "data")),
)
def pointwise(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Act on the local parts, which must lie alike."""
    if kwargs.get("out") is not None:
        raise LayoutError(f"{name_of(function)} of a sharded tensor takes no out=")
    if function in (torch.where, torch.Tensor.where) and len(args) + len(kwargs) < 3:
        raise UnsupportedOperation(
            "torch.where of a condition alone gives positions in the whole image: gather it first "
            "(ctx.gather(x)), or give both values"
        )
    lead = common_layout(function, args, kwargs)
    if function in _in_place or kwargs.get("inplace"):
        return _in_place_result(function, args, kwargs)
    local_args, local_kwargs = swap_tensors(
        (args, kwargs), lambda tensor: local_part(function, tensor, lead)
    )
    return swap_tensors(function(*local_args, **local_kwargs), lead.like)


def _in_place_result(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    target = args[0]
    if not isinstance(target, ShardedTensor):
        raise LayoutError(
            f"{name_of(function)} would write a sharded tensor into a replicated one of shape "
            f"{tuple(target.shape)}, which every rank holds: make it like the sharded one "
            "(torch.zeros_like(x), ctx.zeros(...))"
        )
    local_args, local_kwargs = swap_tensors(
        (args, kwargs), lambda tensor: local_part(function, tensor, target)
    )
    function(*local_args, **local_kwargs)
    refresh(target)
    return target


@rule(torch.Tensor.to)
def convert(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Another type; a sharded tensor does not leave its ranks' devices."""
    x = args[0]
    if not isinstance(x, ShardedTensor):  # plain.to(sharded): only type and device are asked for
        return x.to(
            *(a.to_local() if isinstance(a, ShardedTensor) else a for a in args[1:]), **kwargs
        )
    others: list[Any] = [a.to_local() if isinstance(a, ShardedTensor) else a for a in args[1:]]
    local = x.to_local().to(*others, **kwargs)
    if local.device != x.device:
        raise LayoutError(
            f"a sharded tensor on {x.device} cannot be moved to {local.device}: gather it first "
            "(ctx.gather(x).cpu())"
        )
    return x.like(local)


@rule(*named("cpu cuda", torch.Tensor))
def moved(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor itself where it is on that device already."""
    return convert(torch.Tensor.to, (args[0], function.__name__), {})


@rule(torch.Tensor.type_as)
def like_type(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Only the type and device of the other tensor are asked for."""
    return args[0].to(device=args[1].device, dtype=args[1].dtype)
