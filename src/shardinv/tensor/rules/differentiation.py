"""Autograd: the graph is the local parts', so its functions act on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardinv.tensor.errors import LayoutError
from shardinv.tensor.operands import swap_tensors
from shardinv.tensor.registry import named, rule
from shardinv.tensor.sharded import ShardedTensor, refresh


@rule(*(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "is_leaf", "grad_fn")))
def graph(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the local part says of its graph."""
    return function(args[0].to_local())


@rule(
    torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    *named("requires_grad_ retain_grad detach_", torch.Tensor),
)
def mark(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Mark the local part."""
    result = function(args[0].to_local(), *args[1:], **kwargs)
    refresh(args[0])
    return args[0] if isinstance(result, torch.Tensor) else result


@rule(torch.Tensor.grad.__get__)  # type: ignore[union-attr]
def gradient(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient of the local part, in the same boxes."""
    x: ShardedTensor = args[0]
    grad = x.to_local().grad
    return None if grad is None else x.like(grad)


@rule(torch.Tensor.grad.__set__, torch.Tensor.data.__set__)  # type: ignore[attr-defined,union-attr]
def assign(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Set the gradient or the values of the local part."""
    x, value = args
    if isinstance(value, torch.Tensor) and not isinstance(value, ShardedTensor):
        raise LayoutError(
            f"a replicated tensor {tuple(value.shape)} cannot be the gradient or data of a sharded "
            "one: shard it (ctx.shard(t))"
        )
    if value is not None and (tuple(value.shape), value.sharding) != (tuple(x.shape), x.sharding):
        raise LayoutError(
            f"the gradient or data of a sharded tensor must lie as it does: {tuple(x.shape)}, "
            f"{x.sharding}; got {tuple(value.shape)}, {value.sharding}"
        )
    function(x.to_local(), value.to_local() if value is not None else None)
    refresh(x)


@rule(torch.Tensor.register_hook)
def hook(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a hook with the sharded gradient."""
    x: ShardedTensor = args[0]

    def call(grad: torch.Tensor) -> Any:
        result = args[1](x.like(grad))
        return result.to_local() if isinstance(result, ShardedTensor) else result

    return x.to_local().register_hook(call)


@rule(torch.autograd.grad)
def differentiate(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Gradients of plain or sharded outputs with respect to plain or sharded inputs."""
    _check_seeds(args[0], kwargs.get("grad_outputs", args[2] if len(args) > 2 else None))
    inputs: Any = kwargs.get("inputs", args[1] if len(args) > 1 else None)
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    local_args, local_kwargs = swap_tensors((args, kwargs), _local)
    grads = function(*local_args, **local_kwargs)
    return tuple(
        x.like(grad) if isinstance(x, ShardedTensor) and grad is not None else grad
        for x, grad in zip(inputs, grads, strict=True)
    )


@rule(torch.autograd.backward)
def accumulate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Accumulate gradients in the leaves, plain or sharded."""
    _check_seeds(args[0], kwargs.get("grad_tensors", args[1] if len(args) > 1 else None))
    local_args, local_kwargs = swap_tensors((args, kwargs), _local)
    function(*local_args, **local_kwargs)


@rule(torch.Tensor.backward)
def backward(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Backward from a plain loss, or from a sharded tensor with a sharded seed."""
    _check_seeds(args[0], kwargs.get("gradient", args[1] if len(args) > 1 else None))
    local_args, local_kwargs = swap_tensors((args, kwargs), _local)
    function(*local_args, **local_kwargs)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, ShardedTensor) else tensor


def _check_seeds(outputs: Any, seeds: Any) -> None:
    """Raise unless every sharded output has a seed that lies as it does."""
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    listed: Sequence[Any] = (
        [seeds] * len(outputs) if seeds is None or isinstance(seeds, torch.Tensor) else list(seeds)
    )
    for output, seed in zip(outputs, listed, strict=True):
        if not isinstance(output, ShardedTensor):
            if isinstance(seed, ShardedTensor):
                raise LayoutError("a replicated output needs a replicated cotangent, got a sharded")
            continue
        if seed is None:
            raise RuntimeError(
                "grad can be implicitly created only for scalar outputs: a sharded tensor of shape "
                f"{tuple(output.shape)} needs a sharded cotangent of its own"
            )
        if not isinstance(seed, ShardedTensor) or seed.sharding != output.sharding:
            raise LayoutError(
                f"the cotangent of a sharded tensor must lie as it does: {output.sharding}; got "
                f"{seed.sharding if isinstance(seed, ShardedTensor) else tuple(seed.shape)}"
            )
