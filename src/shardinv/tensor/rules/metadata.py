"""Questions that the wrapper answers by itself: shape, type, device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.sharded import ShardedTensor

_PROPERTIES = "shape dtype device ndim layout is_cuda is_sparse is_quantized is_meta is_mps is_cpu"
_METHODS = (
    "size dim ndimension numel nelement is_complex is_floating_point element_size is_signed "
    "is_conj is_neg is_inference get_device is_same_size"
)
_FREE = "is_complex is_floating_point numel is_conj is_neg is_inference result_type is_same_size"


@rule(
    *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES.split()),
    *named(_METHODS, torch.Tensor),
    *named(_FREE, torch),
    torch.Tensor.__len__,
)
def metadata(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ask the wrapper, which has the shape of the whole."""
    with torch._C.DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


@rule(torch.Tensor.is_contiguous)
def contiguous(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this rank's part is contiguous."""
    return args[0]._local.is_contiguous(*args[1:], **kwargs)


@rule(torch.Tensor.type)
def type_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The type's name, or a conversion."""
    x: ShardedTensor = args[0]
    result = x.to_local().type(*args[1:], **kwargs)
    return x.like(result) if isinstance(result, torch.Tensor) else result


@rule(torch.Tensor.__hash__)
def identity(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Tensors are hashed by identity."""
    return id(args[0])


@rule(torch.Tensor.__repr__, torch.Tensor.__format__)
def text(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A description without values."""
    return ShardedTensor.__repr__(args[0])


@rule(
    *named(
        "item tolist numpy __float__ __int__ __bool__ __complex__ __index__ __array__ "
        "__contains__ storage untyped_storage data_ptr is_nonzero __iter__",
        torch.Tensor,
    ),
    torch.is_nonzero,
)
def values(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    """Refuse to hand out values that no rank has all of."""
    raise UnsupportedOperation(
        f"{name_of(function)} needs all values of an image of which this rank holds a box: gather "
        "it first (ctx.gather(x)), or take this rank's part (x.to_local())"
    )
