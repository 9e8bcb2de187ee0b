"""Comparisons that hold for any number of ranks: values, adjoints, gradients of both orders.

They know nothing of processes: a worker calls them on what its rank holds, a plain test on what
came back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: A tensor, or lists, tuples, mappings of them (DeepInverse's ``TensorList`` is a sequence too).
Tree = Any


def flatten(tree: Tree, name: str = "") -> list[tuple[str, Tensor]]:
    """Return the tensors of ``tree`` in order, each with the index that leads to it."""
    if isinstance(tree, Tensor):
        return [(name, tree)]
    if isinstance(tree, int | float | complex):
        return [(name, torch.as_tensor(tree))]
    items: Iterator[tuple[Any, Any]]
    if isinstance(tree, Mapping):
        items = iter(tree.items())
    elif hasattr(tree, "__getitem__") and hasattr(tree, "__len__"):
        items = enumerate(tree[index] for index in range(len(tree)))
    else:
        raise TypeError(f"Expected tensors, or lists or mappings of them, got {type(tree)}.")
    return [leaf for key, value in items for leaf in flatten(value, f"{name}[{key}]")]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return ``max|actual − expected| / max|expected|``; not divided where the latter is 0."""
    if expected.numel() == 0:
        return 0.0
    wide = torch.promote_types(torch.promote_types(actual.dtype, expected.dtype), torch.float64)
    actual, expected = actual.detach().to(wide), expected.detach().to(wide)
    error = (actual - expected).abs().max().item()
    scale = expected.abs().max().item()
    return error / scale if scale > 0 else error


def assert_close(actual: Tree, expected: Tree, rtol: float, what: str = "result") -> float:
    """Assert equal structure, shapes and types, and values within ``rtol`` of the largest.

    Parameters
    ----------
    actual, expected : tensor, or lists or mappings of tensors
    rtol : float
        Bound on :func:`relative_error` of each tensor; 0 asks for equality.
    what : str
        What is compared, for the message.

    Returns
    -------
    float
        The largest relative error.
    """
    __tracebackhide__ = True
    got, wanted = flatten(actual), flatten(expected)
    if [name for name, _ in got] != [name for name, _ in wanted]:
        raise AssertionError(
            f"{what}: expected {len(wanted)} tensors {[name for name, _ in wanted]}, "
            f"got {len(got)} {[name for name, _ in got]}"
        )
    worst = 0.0
    for (name, mine), (_, reference) in zip(got, wanted):
        label = f"{what}{name}"
        if mine.shape != reference.shape or mine.dtype != reference.dtype:
            raise AssertionError(
                f"{label}: expected {tuple(reference.shape)} of {reference.dtype}, "
                f"got {tuple(mine.shape)} of {mine.dtype}"
            )
        error = relative_error(mine, reference)
        if not error <= rtol:  # so that NaN fails
            raise AssertionError(f"{label}: {_describe(mine, reference, error, rtol)}")
        worst = max(worst, error)
    return worst


def _describe(actual: Tensor, expected: Tensor, error: float, rtol: float) -> str:
    difference = (actual.detach() - expected.detach()).abs()
    flat = int(torch.nan_to_num(difference, nan=torch.inf).argmax())
    where = tuple(int(index) for index in torch.unravel_index(torch.tensor(flat), expected.shape))
    return (
        f"relative error {error:.3g} exceeds {rtol:.3g}; "
        f"at {where} of {tuple(expected.shape)}: expected {expected.flatten()[flat].item():.6g}, "
        f"got {actual.flatten()[flat].item():.6g}"
    )


def assert_same_on_every_rank(results: Sequence[Tree], what: str = "result") -> None:
    """Assert that the results of a run, one a rank, agree to the last bit."""
    __tracebackhide__ = True
    for rank, result in enumerate(results[1:], start=1):
        assert_close(result, results[0], 0.0, f"{what} of rank {rank} against rank 0's, ")


def adjoint_dot_test(
    forward: Callable[[Tree], Tree],
    adjoint: Callable[[Tree], Tree],
    x: Tree,
    y: Tree,
    rtol: float = 1e-10,
    sum_over_ranks: Callable[[Tensor], Tensor] | None = None,
) -> float:
    """Assert that ⟨A x, y⟩ = ⟨x, Aᴴ y⟩, relative to ‖A x‖‖y‖ + ‖x‖‖Aᴴ y‖.

    Parameters
    ----------
    forward, adjoint : callable
        A and Aᴴ.
    x, y : tensor, or lists of tensors
        Arguments of A and Aᴴ; random ones, in double precision for the default ``rtol``.
    sum_over_ranks : callable, optional
        Where ``x`` and ``y`` are this rank's part of something: adds a tensor up over the ranks.

    Returns
    -------
    float
        The relative error.

    Notes
    -----
    If one of the spaces is real and the other complex, A is linear over the reals only, and the
    real parts are compared.
    """
    image, back = forward(x), adjoint(y)
    total = sum_over_ranks or (lambda value: value)
    one = total(_inner(image, y))
    other = total(_inner(x, back))
    scale = (total(_inner(image, image)).real * total(_inner(y, y)).real).sqrt()
    scale = scale + (total(_inner(x, x)).real * total(_inner(back, back)).real).sqrt()
    if not (_is_complex(x) and _is_complex(y)):
        one, other = one.real, other.real
    error = ((one - other).abs() / scale).item() if scale > 0 else (one - other).abs().item()
    if not error <= rtol:
        raise AssertionError(
            f"not adjoint: <Ax, y> = {one.item():.10g}, <x, A'y> = {other.item():.10g}, "
            f"relative error {error:.3g} exceeds {rtol:.3g}"
        )
    return error


def _inner(a: Tree, b: Tree) -> Tensor:
    ours, theirs = flatten(a), flatten(b)
    if [(name, t.shape) for name, t in ours] != [(name, t.shape) for name, t in theirs]:
        raise AssertionError(
            f"no inner product of shapes {[tuple(t.shape) for _, t in ours]} "
            f"and {[tuple(t.shape) for _, t in theirs]}"
        )
    total = torch.zeros((), dtype=torch.complex128)
    for (_, u), (_, v) in zip(ours, theirs):
        wide = torch.complex128 if u.is_complex() or v.is_complex() else torch.float64
        u, v = u.detach().to("cpu", wide), v.detach().to("cpu", wide)
        total = total + torch.vdot(u.flatten(), v.flatten())
    return total


def _is_complex(tree: Tree) -> bool:
    return any(tensor.is_complex() for _, tensor in flatten(tree))


def probe_loss(output: Tree) -> Tensor:
    """Return a real scalar of any output whose gradient depends on every entry and on its value.

    The sum of ½‖t‖² + Re⟨w, t⟩ over the tensors t, with weights w that are fixed, unequal and the
    same everywhere. The square makes second derivatives of linear maps differ from zero.
    """
    loss = torch.zeros((), dtype=torch.float64)
    for _, tensor in flatten(output):
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        weights = torch.cos(torch.arange(real.numel(), dtype=torch.float64)).reshape(real.shape)
        real = real.to(torch.float64)
        weights = weights.to(real.device)
        loss = loss.to(real.device) + (0.5 * real * real + weights * real).sum()
    return loss


def gradients(
    function: Callable[..., Tree],
    inputs: Tree,
    params: Tree = (),
    *,
    order: int = 1,
) -> list[Tensor]:
    """Return gradients of :func:`probe_loss` of ``function(*inputs)``, by ``autograd.grad``.

    Parameters
    ----------
    function : callable
        From the inputs to tensors.
    inputs : tensor or sequence of tensors
        Arguments. Copies of them are used, with ``requires_grad`` set where the type allows.
    params : sequence or mapping of tensors
        Further leaves that the function uses.
    order : {1, 2}
        1: of the loss. 2: of the squared norm of those gradients.

    Returns
    -------
    list of Tensor
        For each input that is floating or complex, then for each parameter; zeros where the result
        doesn't depend on it.
    """
    arguments, leaves = _fresh_leaves(inputs)
    leaves = leaves + [tensor for _, tensor in flatten(params)]
    loss = probe_loss(function(*arguments))
    if order == 2:
        first = _grad(loss, leaves, create_graph=True)
        loss = torch.stack([_squared_norm(gradient) for gradient in first]).sum()
        if not loss.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
    return [gradient.detach() for gradient in _grad(loss, leaves)]


def backward_gradients(
    function: Callable[..., Tree], inputs: Tree, params: Tree = ()
) -> list[Tensor]:
    """Return what :func:`gradients` does, by ``loss.backward()``; leaves parameters' grads None."""
    arguments, leaves = _fresh_leaves(inputs)
    leaves = leaves + [tensor for _, tensor in flatten(params)]
    for leaf in leaves:
        leaf.grad = None
    probe_loss(function(*arguments)).backward()
    found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found


def _fresh_leaves(inputs: Tree) -> tuple[list[Tensor], list[Tensor]]:
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    arguments = [tensor.detach().clone() for tensor in given]
    leaves = [t.requires_grad_() for t in arguments if t.is_floating_point() or t.is_complex()]
    return arguments, leaves


def _grad(loss: Tensor, leaves: list[Tensor], create_graph: bool = False) -> list[Tensor]:
    found = torch.autograd.grad(loss, leaves, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found)]


def _squared_norm(tensor: Tensor) -> Tensor:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.to(torch.float64).square().sum()


def compare_with_reference(
    distributed: Callable[..., Tree],
    reference: Callable[..., Tree],
    x: Tree,
    params: Tree = (),
    reference_params: Tree | None = None,
    *,
    rtol: float = 1e-10,
    rtol_gradients: float | None = None,
    second_order: bool = True,
) -> dict[str, float]:
    """Assert that a distributed callable and the undistributed one are the same function.

    Output, gradients with respect to inputs and parameters by ``backward()`` and by
    ``torch.autograd.grad``, and gradients of the squared gradient norm (``create_graph=True``).

    Parameters
    ----------
    distributed, reference : callable
        From the tensors ``x`` to tensors.
    x : tensor or tuple of tensors
        Arguments of both.
    params, reference_params : sequence or mapping of tensors
        Parameters that each uses, in the same order. By default both use ``params``.
    rtol, rtol_gradients : float
        Bounds on the relative error of the output and of the gradients (by default the same).
    second_order : bool
        Whether to go beyond first derivatives.

    Returns
    -------
    dict of str to float
        The largest relative error of each comparison.
    """
    reference_params = params if reference_params is None else reference_params
    bound = rtol if rtol_gradients is None else rtol_gradients
    arguments, _ = _fresh_leaves(x)
    errors = {
        "output": assert_close(distributed(*arguments), reference(*arguments), rtol, "output")
    }
    names = _leaf_names(x, params)

    def compare(what: str, mine: list[Tensor], theirs: list[Tensor]) -> None:
        errors[what] = assert_close(
            dict(zip(names, mine, strict=True)), dict(zip(names, theirs, strict=True)), bound, what
        )

    by_grad = gradients(reference, x, reference_params)
    grads_before = [tensor.grad for _, tensor in flatten(params)]
    compare("autograd.grad", gradients(distributed, x, params), by_grad)
    for before, (name, tensor) in zip(grads_before, flatten(params)):
        if tensor.grad is not before:
            raise AssertionError(f"autograd.grad changed the .grad of parameter {name}")
    compare("backward", backward_gradients(distributed, x, params), by_grad)
    if second_order:
        compare(
            "second order",
            gradients(distributed, x, params, order=2),
            gradients(reference, x, reference_params, order=2),
        )
    return errors


def _leaf_names(x: Tree, params: Tree) -> list[str]:
    given = [x] if isinstance(x, Tensor) else list(x)
    names = [
        f"input {number}"
        for number, tensor in enumerate(given)
        if tensor.is_floating_point() or tensor.is_complex()
    ]
    return names + [f"parameter {name}" for name, _ in flatten(params)]
