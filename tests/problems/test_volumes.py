"""Volumes: views that differ, and a network of images that denoises volumes."""

from __future__ import annotations

import pytest
import torch

from shardinv.problems import MultiView, inflate, load_denoiser, psnr, simulated_volume


def test_volume_is_the_same_drawn_finer() -> None:
    coarse, fine = simulated_volume(16), simulated_volume(32)
    assert coarse.shape == (1, 1, 16, 16, 16)
    assert torch.equal(coarse, simulated_volume(16))
    assert not torch.equal(coarse, simulated_volume(16, seed=1))
    assert float(fine.min()) >= 0
    assert float(fine.max()) <= 1
    averaged = torch.nn.functional.avg_pool3d(fine, 2)
    assert torch.corrcoef(torch.stack([averaged.flatten(), coarse.flatten()]))[0, 1] > 0.9


def test_views() -> None:
    problem = MultiView(3, noise=0.0)
    x = torch.rand(1, 1, 24, 24, 24, generator=torch.Generator().manual_seed(0))
    y = problem.stack()(x)
    kernels = [problem.kernel(index) for index in range(3)]
    grid = torch.arange(kernels[0].shape[2], dtype=torch.float32)
    for kernel, measured in zip(kernels, y, strict=True):
        assert kernel.sum() == pytest.approx(1)
        assert measured.shape == x.shape
    # The first looks along the first axis: three times as wide there as along the second.
    for axis, width in ((0, 2.4), (1, 0.8), (2, 0.8)):
        profile = kernels[0][0, 0].sum([a for a in range(3) if a != axis])
        mean = (profile * grid).sum()
        assert (profile * (grid - mean) ** 2).sum().sqrt() == pytest.approx(width, rel=0.1)
    assert (kernels[0] - kernels[1]).abs().max() > 0.001
    operator = problem.frame(1)
    v = torch.rand(1, 1, 24, 24, 24)
    assert (operator.A(x) * v).sum() == pytest.approx(
        float((x * operator.A_adjoint(v)).sum()), rel=1e-4
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"views": 0}, "views"), ({"width": 0.0}, "width"), ({"noise": -1.0}, "noise")],
)
def test_views_that_make_no_sense(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiView(**options)  # type: ignore[arg-type]


@torch.no_grad()
def test_inflated_network_denoises() -> None:
    network = inflate(load_denoiser("drunet", channels=1))
    truth = simulated_volume(32)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    noisy = truth + 0.035 * noise
    assert psnr(network(noisy, 0.035), truth) > psnr(noisy, truth) + 0.4


@torch.no_grad()
def test_inflated_network_sees_slices_as_images() -> None:
    """Of a volume whose slices are all alike every slice is what the network makes of an image."""
    flat = load_denoiser("drunet", channels=1)
    image = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    volume = image[:, :, None].expand(-1, -1, 16, -1, -1).contiguous()
    found = inflate(flat)(volume, 0.03)
    torch.testing.assert_close(found[0, 0, 7], flat(image, 0.03)[0, 0], atol=1e-5, rtol=1e-4)


def test_only_drunet() -> None:
    with pytest.raises(ValueError, match="FFDNet holds no DRUNet"):
        inflate(load_denoiser("ffdnet"))
