"""Blur and decimation: its transpose, and DeepInverse's operator as the reference."""

from __future__ import annotations

import pytest
import torch
from deepinv.physics import Downsampling

from shardinv.problems import BlurDownsampling, MultiFrame


@pytest.mark.parametrize(
    ("factor", "size"), [(1, (21, 17)), (2, (32, 34)), (3, (36, 39)), (4, (64, 40))]
)
@pytest.mark.parametrize("kernel_shape", [(7, 7), (1, 9), (9, 1), (1, 1)])
def test_adjoint(factor: int, size: tuple[int, int], kernel_shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    kernel = torch.rand(1, 1, *kernel_shape, dtype=torch.float64)
    physics = BlurDownsampling(kernel, factor)
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    y = physics.A(x)
    v = torch.randn_like(y)
    (by_autograd,) = torch.autograd.grad((y * v).sum(), x)
    adjoint = physics.A_adjoint(v)

    assert y.shape == (2, 3, size[0] // factor, size[1] // factor)
    # Two independent statements: the dot-product test, and autograd's own transpose.
    gap = ((y * v).sum() - (x * adjoint).sum()).abs() / (y.norm() * v.norm())
    assert gap.item() < 1e-12
    torch.testing.assert_close(adjoint, by_autograd, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("index", range(8))
def test_adjoint_of_the_frames(index: int) -> None:
    torch.manual_seed(index)
    physics = MultiFrame().frame(index)
    x = torch.randn(1, 3, 40, 48, dtype=torch.float64)
    y = torch.randn(1, 3, 20, 24, dtype=torch.float64)
    forward, backward = physics.A(x), physics.A_adjoint(y)
    gap = ((forward * y).sum() - (x * backward).sum()).abs() / (forward.norm() * y.norm())
    assert gap.item() < 1e-12


@pytest.mark.parametrize("factor", [2, 3])
def test_is_deepinv_downsampling(factor: int) -> None:
    torch.manual_seed(0)
    kernel = torch.rand(1, 1, 7, 7)
    ours = BlurDownsampling(kernel, factor)
    theirs = Downsampling(img_size=(3, 36, 48), filter=kernel, factor=factor, padding="reflect")
    x = torch.rand(1, 3, 36, 48)
    torch.testing.assert_close(ours.A(x), theirs.A(x))
    y = theirs.A(x)
    torch.testing.assert_close(ours.A_adjoint(y), theirs.A_adjoint(y))


def test_flat_stays_flat_to_the_border() -> None:
    y = MultiFrame().frame(5).A(torch.full((1, 3, 32, 32), 0.7))
    torch.testing.assert_close(y, torch.full((1, 3, 16, 16), 0.7))


def test_refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="31 x 32 pixels can't be decimated by 2"):
        MultiFrame().frame(0).A(torch.zeros(1, 3, 31, 32))


def test_refuses_what_is_smaller_than_the_kernel() -> None:
    with pytest.raises(ValueError, match="too small for a kernel of radius"):
        MultiFrame().frame(0).A(torch.zeros(1, 3, 6, 32))
    with pytest.raises(ValueError, match="too small for a kernel of radius"):
        MultiFrame().frame(0).A_adjoint(torch.zeros(1, 3, 16, 3))


@pytest.mark.parametrize(
    ("shape", "factor", "message"),
    [
        ((3, 3), 2, r"shape \(1, 1, h, w\)"),
        ((1, 1, 4, 3), 2, "odd sides"),
        ((1, 1, 3, 3), 0, "factor must be at least 1"),
    ],
)
def test_refuses_bad_kernels(shape: tuple[int, ...], factor: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlurDownsampling(torch.ones(shape), factor)
