"""Flattened images as the columns of a matrix: what transposing ``(…, m, pixels)`` gives.

It exists to be multiplied with (``rules.linear_algebra``): as any other tensor it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from shardinv.tensor.errors import UnsupportedOperation
from shardinv.tensor.registry import apply_rule, name_of, named
from shardinv.tensor.sharded import ShardedTensor

_ASKED = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    *named("size dim numel is_complex is_floating_point", torch.Tensor),
    *named("is_complex is_floating_point", torch),
}
_ALLOWED = {
    *named("matmul bmm mm mv transpose swapaxes swapdims adjoint", torch, torch.Tensor),
    *named("__matmul__ __rmatmul__", torch.Tensor),
    *(getattr(torch.Tensor, name).__get__ for name in ("mT", "mH")),
    torch.linalg.matmul,
}


class Columns(torch.Tensor):
    """The transpose ``(…, pixels, m)`` of flattened sharded images ``(…, m, pixels)``.

    Parameters
    ----------
    rows
        The flattened images.
    """

    rows: ShardedTensor

    @staticmethod
    def __new__(cls, rows: ShardedTensor) -> Columns:  # noqa: D102
        shape = (*rows.shape[:-2], rows.shape[-1], rows.shape[-2])
        result: Columns = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=rows.dtype, device=rows.device, requires_grad=False
        )
        result.rows = rows
        return result

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func not in _ALLOWED:
            raise refusal(func)
        return apply_rule(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        raise refusal(func)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Columns({self.rows!r})"


def refusal(function: Callable[..., Any]) -> UnsupportedOperation:
    """What is raised where columns are used otherwise than in a product."""
    return UnsupportedOperation(
        f"{name_of(function)} of transposed flattened images: they can be multiplied by other "
        "flattened images or by a small matrix. Transpose them back first"
    )
