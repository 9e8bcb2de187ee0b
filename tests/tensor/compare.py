"""Comparing a function of sharded tensors with the same function of plain ones, on every rank.

Values, types, gradients of first and second order, in several layouts of the ranks. Workers call
this; the tests start them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardinv import DistributedContext
from shardinv.tensor import ShardedTensor
from shardinv.tensor.axes import cut_axes
from tests.harness.checks import assert_close, probe_loss

Case = tuple[str, Callable[..., Any]]


def meshes(ranks: int, ndim: int) -> list[tuple[int, ...]]:
    """Meshes to try: cut along the first axis, along the last, and along two where they go up."""
    found = {(ranks, *(1,) * (ndim - 1)), (*(1,) * (ndim - 1), ranks)}
    if ranks == 4 and ndim > 1:
        found.add((2, 2, *(1,) * (ndim - 2)))
    return sorted(found)


def whole(tree: Any) -> Any:
    """The tree with every sharded tensor gathered."""
    if isinstance(tree, ShardedTensor):
        return tree.full_tensor().resolve_conj()
    if isinstance(tree, torch.Tensor):
        return tree.resolve_conj()
    if not isinstance(tree, (list, tuple)):
        return tree
    return [whole(branch) for branch in tree]


def compare(
    ctx: DistributedContext,
    what: str,
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    params: Sequence[torch.Tensor] = (),
    mesh: Any = None,
    order: int = 2,
    rtol: float = 1e-12,
) -> None:
    """Assert that ``function(*inputs, *params)`` is the same with sharded inputs.

    Parameters
    ----------
    ctx
        The ranks.
    what
        What is compared, for messages.
    function
        Of sharded or plain images, and of plain parameters.
    *inputs
        Plain images, the same on every rank; floating ones get gradients.
    params
        Plain tensors; floating ones get gradients.
    mesh
        As for ``ctx.shard``.
    order
        Highest order of the gradients that are compared; 0 for none.
    rtol
        Bound on the relative errors.
    """
    what = f"{what}, mesh {mesh}"
    given = [*inputs, *params]
    if not any(t.is_floating_point() or t.is_complex() for t in given):
        order = 0
    plain = [_leaf(t, order) for t in given]
    sharded = [
        ctx.shard(t, mesh).requires_grad_(t.requires_grad) if k < len(inputs) else t
        for k, t in enumerate(_leaf(t, 0).requires_grad_(t.requires_grad) for t in plain)
    ]
    for t, source in zip(sharded, plain, strict=True):
        assert t.requires_grad == source.requires_grad, what
    expected, found = function(*plain), function(*sharded)
    mine, theirs = _tensors(found), _tensors(expected)
    assert len(mine) == len(theirs), f"{what}: {len(mine)} results, expected {len(theirs)}"
    for a, b in zip(mine, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{what}: {a!r}, expected {b.shape}"
        # Also where a rank has no pixel: its backward would be out of step with the others'.
        assert a.requires_grad == b.requires_grad, f"{what}: needs a gradient: {a.requires_grad}"
    if not mine:
        assert found == expected, f"{what}: {found}, expected {expected}"
        return
    for a, b in zip(mine, theirs, strict=True):
        assert_alike(a, b, max(rtol, _precision(b.dtype)), f"{what}: values")
    if not order or not any(b.requires_grad for b in theirs):
        return
    references = _gradients(expected, plain, order)
    results = _gradients(found, sharded, order)
    for number, (mine, theirs) in enumerate(zip(results, references, strict=True), start=1):
        for t, grad in zip(sharded, mine, strict=False):
            if isinstance(t, ShardedTensor) and grad is not None:
                assert isinstance(grad, ShardedTensor), what
                assert grad.sharding == t.sharding, what
        for place, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            none = torch.zeros_like(plain_of(plain, place))
            assert_alike(
                none if a is None else a.detach(),
                none if b is None else b.detach(),
                rtol,
                f"{what}: order {number}, leaf {place}",
            )


def assert_alike(mine: torch.Tensor, reference: torch.Tensor, rtol: float, what: str) -> None:
    """Assert that values are a plain reference's; of a sharded tensor each rank checks its box.

    No message, and every pixel is checked where it lies, relative to the largest of the whole.
    """
    reference = reference.resolve_conj()
    if not isinstance(mine, ShardedTensor):
        assert_close(mine.resolve_conj(), reference, rtol, what)
        return
    assert mine.shape == reference.shape, f"{what}: {mine.shape}, expected {reference.shape}"
    local = mine.to_local().detach().resolve_conj()
    found = reference.detach().to(local.dtype, copy=True)
    image, axes = found, cut_axes(mine)
    if mine.folded is not None:
        image = found.view(*found.shape[:-1], *mine.folded, *mine.sharding.shape)
        local = local.reshape(*local.shape[:-1], *mine.folded, *mine.box.shape)
        axes = tuple(range(image.ndim - mine.sharding.ndim, image.ndim))
    index = [slice(None)] * image.ndim
    for axis, part in zip(axes, mine.box.slices(), strict=True):
        index[axis] = part
    box = image[tuple(index)]
    assert box.shape == local.shape, f"{what}: {local.shape} of {mine!r}"
    box.copy_(local)
    assert_close(found, reference, rtol, what)


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [leaf for branch in tree for leaf in _tensors(branch)]
    return []


def _precision(dtype: torch.dtype) -> float:
    """What vectorised and scalar code may differ by: a box has other lengths than the whole."""
    return 0.0 if dtype in (torch.float64, torch.complex128) else 1e-6


def plain_of(tensors: Sequence[torch.Tensor], place: int) -> torch.Tensor:
    """The leaf at a place among those that get gradients."""
    return [t.detach() for t in tensors if t.requires_grad][place]


def _leaf(tensor: torch.Tensor, order: int) -> torch.Tensor:
    tensor = tensor.detach().clone()
    if order and (tensor.is_floating_point() or tensor.is_complex()):
        tensor.requires_grad_()
    return tensor


def _gradients(result: Any, inputs: Sequence[torch.Tensor], order: int) -> list[list[Any]]:
    leaves = [t for t in inputs if t.requires_grad]
    values = whole(result)
    values = [values] if isinstance(values, torch.Tensor) else values
    values = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
    loss = probe_loss(values)
    found: list[list[Any]] = []
    for _ in range(order):
        grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        found.append(list(grads))
        loss = torch.zeros((), dtype=torch.float64)
        for grad in grads:
            if grad is not None and grad.requires_grad:
                loss = loss + ((grad * grad.conj()).real if grad.is_complex() else grad**2).sum()
        if not loss.requires_grad:
            break
    return found


def run_cases(ctx: DistributedContext, cases: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Run all cases; the first that fails on a rank ends the run, and names the case."""
    for name, case in cases:
        try:
            case()
        except Exception as error:
            raise AssertionError(
                f"{name}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
            ) from error
