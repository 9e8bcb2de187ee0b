"""Complex and single-precision images, real and complex measurements, ranks with nothing to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import LinearPhysics, StackedLinearPhysics

from shardinv import distribute
from shardinv.context import DistributedContext
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    adjoint_dot_test,
    assert_close,
    compare_with_reference,
)
from tests.physics.stacks import (
    SUMMATION,
    Dense,
    Gradients,
    Spectrum,
    flat,
    generator,
    image,
    random_like,
    unflat,
)

DTYPES = {
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
    torch.bfloat16: 2e-2,
}


class Weights(LinearPhysics):
    """A weight for each pixel, of any type."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        self.register_buffer("weights", image(seed, batch=1, dtype=torch.complex128).to(dtype))

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.weights * x

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.weights.conj() * y


def images_of_any_type(ctx: DistributedContext, count: int) -> None:
    """Case 17 of the peer: fewer operators than ranks, and images that aren't float32."""
    for dtype, rtol in DTYPES.items():
        x = image(0, dtype=torch.complex128).to(dtype)
        operators = [Weights(dtype, seed=number) for number in range(count)]
        reference, ours = StackedLinearPhysics(operators), distribute(operators, ctx)
        y = reference.A(x)
        name = str(dtype)
        assert_close(ours.A(x), y, rtol, name)
        assert_close(ours.A(x, gather=False).gather(), y, rtol, name)
        assert_close(ours.A_adjoint(y), reference.A_adjoint(y), rtol, name)
        assert_close(ours.A_adjoint_A(x), reference.A_adjoint_A(x), rtol, name)
        if dtype == torch.bfloat16:
            continue
        compare_with_reference(ours.A_adjoint_A, reference.A_adjoint_A, x, rtol=10 * rtol)
        adjoint_dot_test(ours.A, ours.A_adjoint, x, random_like(y), rtol=rtol)
        options = {"max_iter": 4, "tol": 1e-9}
        assert_close(
            ours.A_dagger(y, **options), reference.A_dagger(y, **options), 100 * rtol, name
        )
        norm = ours.compute_sqnorm(x, max_iter=20, verbose=False)
        assert norm.dtype == x.real.dtype
        bound = ours.compute_sqnorm(x, max_iter=20, verbose=False, local_only=True)
        assert norm <= bound * 1.01


@pytest.mark.filterwarnings("ignore:.*implicit_backward")
@pytest.mark.filterwarnings("ignore:Power iteration")
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_images_of_any_type(pool: WorkerPool, world_size: int, count: int) -> None:
    pool.run(images_of_any_type, count, world_size=world_size)


def mixture() -> list[LinearPhysics]:
    return [Dense(9, seed=1), Spectrum(seed=2), Gradients(), Spectrum(seed=3)]


def real_and_complex_measurements(ctx: DistributedContext) -> None:
    """Case 18 of the peer: one list with real, complex, nested and single-precision entries."""
    reference, ours = StackedLinearPhysics(mixture()), distribute(mixture(), ctx)
    x = image(0)
    y = random_like(reference.A(x))
    assert {t.dtype for t in flat(y)} == {torch.float64, torch.complex128}
    compare_with_reference(ours.A, reference.A, x, rtol=SUMMATION)
    compare_with_reference(
        lambda *v: ours.A_adjoint(unflat(list(v), y)),
        lambda *v: reference.A_adjoint(unflat(list(v), y)),
        tuple(flat(y)),
        rtol=SUMMATION,
    )
    adjoint_dot_test(ours.A, ours.A_adjoint, x, y, rtol=1e-12)
    assert_close(ours.A_A_adjoint(y), reference.A_A_adjoint(y), SUMMATION)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_real_and_complex_measurements(pool: WorkerPool, world_size: int) -> None:
    pool.run(real_and_complex_measurements, world_size=world_size)


def unequal_types_and_sizes(ctx: DistributedContext) -> None:
    """Whole, boolean and odd-sized measurements in one message."""
    kinds = [torch.int64, torch.bool, torch.float16, torch.float64, torch.complex64, torch.uint8]
    operators = [
        LinearPhysics(A=lambda x, n=n, kind=kind, **_: x[..., : 1 + n % 3].to(kind))
        for n, kind in enumerate(kinds)
    ]
    x = (10 * image(0)).round().abs()
    assert_close(distribute(operators, ctx).A(x), StackedLinearPhysics(operators).A(x), 0.0)


@pytest.mark.parametrize("world_size", (2, 4))
def test_measurements_of_any_type(pool: WorkerPool, world_size: int) -> None:
    pool.run(unequal_types_and_sizes, world_size=world_size)


def lazily_conjugated(ctx: DistributedContext) -> None:
    """Pending conjugations, strides and expanded views of inputs and outputs are sent right."""
    operators = [
        LinearPhysics(A=lambda x, **_: x.conj(), A_adjoint=lambda y, **_: y.conj()),
        LinearPhysics(A=lambda x, **_: x.mT, A_adjoint=lambda y, **_: y.mT),
        LinearPhysics(
            A=lambda x, **_: x[:, :, :1].expand_as(x),
            A_adjoint=lambda y, **_: y.sum(2, keepdim=True).expand_as(y),
        ),
        LinearPhysics(A=lambda x, **_: x.imag * 1.0, A_adjoint=lambda y, **_: 1j * y),
    ]
    x = image(0, dtype=torch.complex128).mT.conj()
    reference, ours = StackedLinearPhysics(operators), distribute(operators, ctx)
    assert_close(ours.A(x), reference.A(x), 0.0)
    y = unflat([t[:].mT.contiguous().mT for t in flat(reference.A(x))], reference.A(x))
    assert_close(ours.A_adjoint(y), reference.A_adjoint(y), SUMMATION)
    assert_close(ours.A_adjoint_A(x), reference.A_adjoint_A(x), SUMMATION)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_views(pool: WorkerPool, world_size: int) -> None:
    pool.run(lazily_conjugated, world_size=world_size)


def idle_ranks(ctx: DistributedContext) -> list[torch.Tensor]:
    """A rank without an operator takes part in every gradient, whoever asked for which."""
    ours = distribute([Dense(9, seed=1)], ctx)
    y = [torch.randn(2, 9, generator=generator(0), dtype=torch.float64)]
    found = []
    x = image(0).requires_grad_()
    ours.A(x)[0].sum().backward()
    found.append(x.grad.clone())
    v = y[0].clone().requires_grad_()
    ours.A_adjoint([v]).square().sum().backward()
    found.append(v.grad.clone())
    x = image(0).requires_grad_()
    (gradient,) = torch.autograd.grad(ours.A_adjoint_A(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    found.append(x.grad.clone())
    # A gradient that flows through one of two results, and a result that nobody uses.
    x = image(0).requires_grad_()
    ours.A(x)
    ours.A_adjoint(ours.A(x, gather=False)).sum().backward()
    found.append(x.grad.clone())
    with torch.no_grad():
        assert not ours.A_adjoint_A(x).requires_grad
    return found


@pytest.mark.parametrize("world_size", (2, 4))
def test_ranks_with_nothing_to_do(pool: WorkerPool, world_size: int) -> None:
    expected = pool.run(idle_ranks, world_size=1)[0]
    for found in pool.run(idle_ranks, world_size=world_size):
        assert_close(found, expected, SUMMATION)
