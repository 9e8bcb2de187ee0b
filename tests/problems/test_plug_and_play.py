"""The loop, its step size, its schedule and its start, undistributed and on several ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from deepinv.optim.data_fidelity import L2

from shardinv.problems import (
    MultiFrame,
    noise_schedule,
    normalised_adjoint,
    plug_and_play,
    psnr,
    relative_error,
    ssim,
    step_size,
)


def test_schedule() -> None:
    assert noise_schedule(0.08, 0.01, 4) == pytest.approx([0.08, 0.04, 0.02, 0.01])
    assert noise_schedule(0.08, 0.01, 1) == [0.08]
    assert noise_schedule(0.02, 0.02, 3) == [0.02] * 3


def test_step_size_hardly_depends_on_the_proxy() -> None:
    physics = MultiFrame().stack()
    small = step_size(physics, torch.zeros(1, 3, 64, 64))
    large = step_size(physics, torch.zeros(1, 3, 160, 160))
    assert small == pytest.approx(large, rel=0.02)
    with pytest.raises(ValueError, match="between 0 and 2"):
        step_size(physics, torch.zeros(1, 3, 64, 64), 2.0)


def test_start_has_the_right_brightness() -> None:
    physics = MultiFrame(noise=0).stack()
    flat = torch.full((1, 3, 48, 48), 0.6)
    torch.testing.assert_close(normalised_adjoint(physics, physics(flat), flat), flat)


def test_without_a_denoiser_it_descends() -> None:
    torch.manual_seed(0)
    physics = MultiFrame(noise=0).stack()
    truth = torch.rand(1, 3, 48, 48)
    y = physics(truth)
    step = step_size(physics, truth)
    loop = plug_and_play(torch.zeros_like(truth), y, physics, L2(), None, step, [0.1] * 6)
    values = [sum(float((a - b).norm()) ** 2 for a, b in zip(physics.A(x), y)) for x in loop]
    assert len(values) == 6
    assert all(later < earlier for earlier, later in pairwise(values))


def test_scores() -> None:
    torch.manual_seed(0)
    truth = torch.rand(1, 3, 32, 32)
    assert psnr(truth, truth) == float("inf")
    assert psnr(truth * 0, truth * 0 + 0.1) == pytest.approx(20, abs=1e-5)
    # What a picture can't show doesn't count.
    assert psnr(torch.full_like(truth, 1.5), torch.ones_like(truth)) == float("inf")
    assert ssim(truth, truth) == pytest.approx(1, abs=1e-5)
    assert ssim(truth.flip(-1), truth) < 0.5
    assert relative_error(1.1 * truth, truth) == pytest.approx(0.1, rel=1e-5)
