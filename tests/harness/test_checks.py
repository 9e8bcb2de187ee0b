"""The checks must pass what is right and, more to the point, fail what is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.harness.checks import (
    adjoint_dot_test,
    assert_close,
    assert_same_on_every_rank,
    compare_with_reference,
    gradients,
    relative_error,
)


def randn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def test_relative_error_is_of_the_largest_value() -> None:
    assert relative_error(torch.tensor([1.0, 101.0]), torch.tensor([0.0, 100.0])) == 0.01
    assert relative_error(torch.tensor([0.5]), torch.zeros(1)) == 0.5


def test_assert_close_says_where_and_how_far() -> None:
    expected = torch.arange(6.0).reshape(2, 3)
    actual = expected.clone()
    actual[1, 0] += 0.5
    with pytest.raises(
        AssertionError, match=r"blur: relative error 0.1 .* at \(1, 0\) of \(2, 3\)"
    ):
        assert_close(actual, expected, 1e-3, "blur")
    assert assert_close(actual, expected, 0.11) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("actual", "match"),
    [
        ([torch.ones(2)], "expected 2 tensors"),
        ([torch.ones(2), torch.ones(4)], r"result\[1\]: expected \(3,\)"),
        ([torch.ones(2), torch.ones(3).double()], "float32, got"),
        ([torch.ones(2), torch.full((3,), torch.nan)], "nan"),
    ],
)
def test_assert_close_compares_structure(actual: list[Tensor], match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        assert_close(actual, [torch.ones(2), torch.ones(3)], 1.0)


def test_same_on_every_rank_means_to_the_last_bit() -> None:
    one = torch.ones(1, dtype=torch.float64)
    assert_same_on_every_rank([one, one.clone()])
    with pytest.raises(AssertionError, match="rank 1 against rank 0"):
        assert_same_on_every_rank([one, one + 1e-15])


def test_adjoint_of_a_complex_matrix() -> None:
    matrix = randn(4, 3, dtype=torch.complex128)
    x, y = randn(3, dtype=torch.complex128), randn(4, dtype=torch.complex128) * 1j
    adjoint_dot_test(lambda v: matrix @ v, lambda v: matrix.mH @ v, x, y)
    with pytest.raises(AssertionError, match="not adjoint"):
        adjoint_dot_test(lambda v: matrix @ v, lambda v: matrix.mT @ v, x, y)


def test_adjoint_of_a_real_image_with_complex_measurements() -> None:
    x, y = randn(8), torch.fft.fft(randn(2, 8)[1]) * 1j
    adjoint_dot_test(torch.fft.fft, lambda v: torch.fft.ifft(v).real * 8, x, y)


def test_adjoint_of_a_stack() -> None:
    x, y = randn(3), [randn(3) + 1, randn(3) - 2]
    adjoint_dot_test(lambda v: [2 * v, 3 * v], lambda v: 2 * v[0] + 3 * v[1], x, y)


def test_gradients_of_both_orders() -> None:
    x = randn(3)
    weights = torch.cos(torch.arange(3, dtype=torch.float64))
    (first,) = gradients(lambda v: 2 * v, x)
    assert_close(first, 2 * (2 * x + weights), 1e-12)
    (second,) = gradients(lambda v: 2 * v, x, order=2)
    assert_close(second, 2 * 4 * first, 1e-12)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 1, 3, padding=1)
    ).double()


def test_equal_functions_pass() -> None:
    model, copy = network(), network()
    errors = compare_with_reference(
        model,
        copy,
        randn(1, 1, 6, 5),
        params=dict(model.named_parameters()),
        reference_params=dict(copy.named_parameters()),
    )
    assert set(errors) == {"output", "autograd.grad", "backward", "second order"}
    assert all(parameter.grad is None for parameter in model.parameters())


class WrongGradient(torch.autograd.Function):
    """Identity whose gradient is too large, of the first order or only of the second."""

    @staticmethod
    def forward(ctx: object, x: Tensor, order: int) -> Tensor:
        ctx.order = order  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.order == 1:  # type: ignore[attr-defined]
            return 2 * grad, None
        return WrongGradient.apply(grad, 1), None


@pytest.mark.parametrize(("order", "match"), [(1, "^autograd.grad.*input 0"), (2, "^second order")])
def test_wrong_gradients_are_found(order: int, match: str) -> None:
    model = network()
    with pytest.raises(AssertionError, match=match):
        compare_with_reference(
            lambda x: model(WrongGradient.apply(x, order)), model, randn(1, 1, 4, 4)
        )


def test_a_lost_parameter_gradient_is_found() -> None:
    model = network()
    detached = [parameter.detach() for parameter in model.parameters()]

    def without_graph(x: Tensor) -> Tensor:
        names = dict(zip(dict(model.named_parameters()), detached))
        return torch.func.functional_call(model, names, (x,))

    with pytest.raises(AssertionError, match="parameter"):
        compare_with_reference(
            without_graph, model, randn(1, 1, 4, 4), dict(model.named_parameters())
        )
