"""Point-spread functions: their mass, their centre, their widths."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardinv.problems import shifted_gaussian


def _moments(kernel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    radius = kernel.shape[-1] // 2
    grid = torch.arange(-radius, radius + 1, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    mass = kernel.reshape(-1)
    mean = mass @ points
    centred = points - mean
    return mean, centred.T @ (mass[:, None] * centred)


@given(
    st.floats(0.8, 1.6),
    st.floats(0.8, 1.6),
    st.floats(0, math.pi),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
)
def test_mass_centre_widths(
    first: float, second: float, angle: float, shift: tuple[float, float]
) -> None:
    kernel = shifted_gaussian((first, second), angle, shift, radius=10)
    mean, covariance = _moments(kernel)
    axis = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)

    assert kernel.shape == (1, 1, 21, 21)
    assert kernel.sum().item() == pytest.approx(1, abs=1e-12)
    assert mean.tolist() == pytest.approx(shift, abs=1e-3)
    assert (axis @ covariance @ axis).item() == pytest.approx(first**2, rel=1e-2)
    assert covariance.trace().item() == pytest.approx(first**2 + second**2, rel=1e-2)


def test_refuses_no_width() -> None:
    with pytest.raises(ValueError, match="widths must be positive"):
        shifted_gaussian((1.0, 0.0), 0.0, radius=3)


def test_refuses_shift_off_the_grid() -> None:
    with pytest.raises(ValueError, match="larger radius"):
        shifted_gaussian((1.0, 1.0), 0.0, (4.0, 0.0), radius=3)
