"""The sharded tensor: reports the shape of the whole, holds this rank's box.

It meets every function of torch at ``__torch_function__``, above autograd: the rules (in
``rules``) act on the local part, which is an ordinary tensor with an ordinary graph. Nothing slips
below: ``__torch_dispatch__`` always raises.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

import torch

from shardinv.geometry import Box
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.registry import apply_rule, name_of
from shardinv.tensor.sharding import Sharding


class ShardedTensor(torch.Tensor):
    """A tensor of which every rank holds a box.

    Made by ``ctx.shard``, ``ctx.zeros`` and their like. Its axes are any leading ones (batch,
    channels), the spatial ones, which are cut, and perhaps trailing ones. Pointwise functions act
    on the local part. Reductions over the whole (norms, sums, inner products, maxima) are
    collective and return plain tensors, the same on every rank, so ``if residual < tol`` takes the
    same branch everywhere. What has no rule raises
    :class:`~shardinv.tensor.UnsupportedOperation`.

    Parameters
    ----------
    local
        This rank's part, ``(*lead, *box.shape, *trailing)``; with ``folded``, the last axis is all
        of those.
    sharding
        The boxes of all ranks.
    trailing
        Number of axes after the spatial ones.
    folded
        Where the last axes were flattened into one: the lengths of those before the spatial ones.

    Notes
    -----
    The graph is the local part's, and so is the cotangent, of the same box.
    """

    sharding: Sharding
    trailing: int
    folded: tuple[int, ...] | None
    _local: torch.Tensor

    @staticmethod
    def __new__(  # noqa: D102
        cls,
        local: torch.Tensor,
        sharding: Sharding,
        trailing: int = 0,
        folded: tuple[int, ...] | None = None,
    ) -> ShardedTensor:
        if isinstance(local, ShardedTensor):
            raise TypeError("the local part of a sharded tensor is a plain tensor")
        shape = tuple(local.shape)
        own = sharding.box.shape
        if folded is not None:
            expected: tuple[int, ...] = (prod(folded) * sharding.box.size,)
            whole = (*shape[:-1], prod(folded) * prod(sharding.shape))
            held = shape[-1:]
        else:
            end = len(shape) - trailing
            first = end - sharding.ndim
            expected, held = own, shape[max(first, 0) : end]
            whole = (*shape[: max(first, 0)], *sharding.shape, *shape[end:])
        if held != expected:
            raise LayoutError(
                f"rank {sharding.comm.rank} holds {sharding.box} of an image of "
                f"{sharding.shape} px, so its part should end in {expected}; it has shape {shape}"
            )
        result: ShardedTensor = torch.Tensor._make_wrapper_subclass(
            cls, whole, dtype=local.dtype, device=local.device, requires_grad=local.requires_grad
        )
        result._local = local
        result.sharding = sharding
        result.trailing = trailing
        result.folded = folded
        return result

    @classmethod
    def wrap(cls, local: torch.Tensor, sharding: Sharding) -> ShardedTensor:
        """The sharded tensor of every rank's part ``(*lead, *box.shape)``. No message."""
        return cls(local, sharding)

    def like(self, local: torch.Tensor) -> ShardedTensor:
        """Another tensor that lies on the ranks as this one does, with the given local part."""
        return ShardedTensor(local, self.sharding, self.trailing, self.folded)

    @property
    def box(self) -> Box:
        """This rank's box, in pixels of the whole image."""
        return self.sharding.box

    def to_local(self) -> torch.Tensor:
        """This rank's part, with its graph. No message."""
        check_graph(self)
        return self._local

    def full_tensor(self) -> torch.Tensor:
        """The whole, as a plain tensor on every rank. Collective, and differentiable."""
        from shardinv.tensor.transfer import gather

        return gather(self)

    def to_dtensor(self, device_mesh: Any = None) -> Any:
        """The same tensor as a ``DTensor``; see :func:`shardinv.tensor.dtensor.to_dtensor`."""
        from shardinv.tensor.dtensor import to_dtensor

        return to_dtensor(self, device_mesh)

    @staticmethod
    def from_dtensor(comm: Any, dt: Any, sharding: Sharding | None = None) -> ShardedTensor:
        """A ``DTensor`` as a sharded one; see :func:`shardinv.tensor.dtensor.from_dtensor`."""
        from shardinv.tensor.dtensor import from_dtensor

        return from_dtensor(comm, dt, sharding)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return apply_rule(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        raise UnsupportedOperation(
            f"{name_of(func)} was called on a sharded tensor below its rules, by compiled code or "
            "a function of torch that does not announce itself. Gather the image first "
            "(ctx.gather(x)), or run the part as a distributed block"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedTensor:
        if self.to_local().grad_fn is not None:
            raise RuntimeError(
                "only tensors that are leaves of their graph can be deep-copied: detach it first "
                "(x.detach())"
            )
        twin = self.like(self._local.detach().clone().requires_grad_(self._local.requires_grad))
        memo[id(self)] = twin
        return twin

    def __copy__(self) -> ShardedTensor:
        return self.like(self.to_local())

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a sharded tensor works with other processes and cannot be pickled: save it with "
            "ctx.save(folder, x=x), or gather it first (ctx.gather(x))"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shape, dtype = tuple(self.shape), str(self.dtype).removeprefix("torch.")
        grad = ", requires_grad=True" if self._local.requires_grad else ""
        return (
            f"ShardedTensor(shape={shape}, dtype={dtype}{grad}, rank {self.sharding.comm.rank} "
            f"holds {self.box} of {self.sharding})"
        )


def refresh(x: ShardedTensor) -> None:
    """Let the wrapper need a gradient as its local part does, after that was written to.

    A custom ``autograd.Function`` sees the wrapper only: by this it puts a graph on what it
    returns, by which :func:`check_graph` knows.
    """
    with torch._C.DisableTorchFunctionSubclass():
        if x.requires_grad != x._local.requires_grad:
            x.requires_grad_(x._local.requires_grad)


def check_graph(x: ShardedTensor) -> None:
    """Raise if a custom ``autograd.Function`` has put its graph on the wrapper, where it is lost.

    Raises
    ------
    RuntimeError
        If so.
    """
    with torch._C.DisableTorchFunctionSubclass():
        lost = x.grad_fn is not None
    if lost:
        raise RuntimeError(
            "a custom autograd.Function was applied to a sharded tensor: the gradient would be "
            "lost. Where it is DeepInverse's implicit least squares, set "
            "physics.implicit_backward_solver = False; else apply the function to x.to_local(), "
            "or run it under torch.no_grad()"
        )
