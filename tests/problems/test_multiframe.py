"""The multi-frame problem: frames that differ, noise that doesn't depend on who draws it."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch.nn.functional import interpolate

from shardinv.problems import MultiFrame


def test_frames_really_differ() -> None:
    problem = MultiFrame()
    optics = [problem.optics(index) for index in range(problem.frames)]
    for a, b in combinations(optics, 2):
        # Shifts apart by a noticeable part of a coarse pixel, also modulo the sampling grid.
        apart = [abs(p - q) % problem.factor for p, q in zip(a.shift, b.shift, strict=True)]
        apart = [min(d, problem.factor - d) for d in apart]
        assert max(apart) > 0.15 * problem.factor
        assert a.angle != b.angle
        assert a.width != b.width
    assert all(o.width[0] > 1.3 * o.width[1] for o in optics)
    assert all(max(map(abs, o.shift)) <= problem.factor / 2 for o in optics)


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_kernels_fit_their_grid(factor: int) -> None:
    problem = MultiFrame(factor=factor)
    for index in range(problem.frames):
        kernel = problem.frame(index).kernel[0, 0]
        border = kernel.clone()
        border[1:-1, 1:-1] = 0
        assert border.max() < 0.02 * kernel.max()


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_the_reference_frame_is_aligned_with_interpolation(factor: int) -> None:
    # A slope survives blur, decimation and cubic interpolation exactly, if nothing moved.
    ramp = torch.arange(96.0).div(96).expand(1, 1, 96, 96)
    frame = MultiFrame(factor=factor, noise=0).frame(0).A(ramp)
    up = interpolate(frame, scale_factor=factor, mode="bicubic", align_corners=False)
    inside = (..., slice(24, -24), slice(24, -24))
    # Bicubic interpolation with a = -0.75 bends a slope by up to 3 % of a coarse pixel.
    torch.testing.assert_close(up[inside], ramp[inside], atol=0.1 * factor / 96, rtol=0)


def test_noise_is_the_frame_s_own() -> None:
    problem = MultiFrame(noise=0.1, seed=3)
    x = torch.full((1, 3, 64, 64), 0.5)
    together = problem.stack()(x)
    alone = [problem.frame(index)(x) for index in (5, 2)]
    torch.testing.assert_close(together[5], alone[0], rtol=0, atol=0)
    torch.testing.assert_close(together[2], alone[1], rtol=0, atol=0)
    noise = [y - 0.5 for y in together]
    assert all(n.std().item() == pytest.approx(0.1, rel=0.1) for n in noise)
    assert abs((noise[0] * noise[1]).mean().item()) < 1e-3
    other = MultiFrame(noise=0.1, seed=4).frame(0)(x)
    assert not torch.equal(other, together[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"frames": 0}, "frames"), ({"factor": 0}, "factor"), ({"noise": -1}, "noise")],
)
def test_refuses(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} must be at least"):
        MultiFrame(**options)  # type: ignore[arg-type]


def test_refuses_a_frame_that_is_not_there() -> None:
    with pytest.raises(IndexError, match="frame 8 of 8"):
        MultiFrame().frame(8)
