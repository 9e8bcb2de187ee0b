"""The denoisers that ship: they denoise; and a user's own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from deepinv.models import DRUNet, FFDNet
from deepinv.models.base import Denoiser

from shardinv.io import read_image, shipped_file
from shardinv.problems import NoisePredictor, centre_square, load_denoiser, psnr, weights_file


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    return centre_square(read_image(shipped_file("picos")), 128)[0]


@pytest.mark.parametrize(
    ("name", "sigma", "gain"), [("ffdnet", 5, 5), ("ffdnet", 25, 9), ("drunet", 5, 4)]
)
@pytest.mark.parametrize("channels", [3, 1])
def test_shipped(name: str, sigma: int, gain: float, channels: int, image: torch.Tensor) -> None:
    truth = image if channels == 3 else image.mean(1, keepdim=True)
    torch.manual_seed(0)
    noisy = truth + sigma / 255 * torch.randn_like(truth)
    denoiser = load_denoiser(name, channels=channels)
    result = denoiser(noisy, sigma / 255)
    # A grey image has no colour to compare, and less to gain.
    least = gain if channels == 3 else gain - 2.5
    assert psnr(result, truth) > psnr(noisy, truth) + least
    assert isinstance(denoiser, Denoiser)
    assert not denoiser.training
    assert not any(p.requires_grad for p in denoiser.parameters())


def test_ffdnet_sees_24_pixels(image: torch.Tensor) -> None:
    denoiser = load_denoiser("ffdnet")
    whole = denoiser(image, 0.05)
    window = denoiser(image[..., 32:, 32:], 0.05)
    torch.testing.assert_close(window[..., 24:, 24:], whole[..., 56:, 56:], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "network",
    [
        FFDNet(5, 16, 3, pretrained=None),
        FFDNet(4, 16, 1, last_conv_bias=False, pretrained=None),
        DRUNet(3, 3, nc=(4, 8, 8, 16), nb=1, pretrained=None),
    ],
)
def test_own_weights(network: torch.nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": network.state_dict()}, path)
    channels = 1 if isinstance(network, FFDNet) and network.blocks[0][0].in_channels == 8 else 3
    loaded = load_denoiser(path, channels=channels)
    inner = loaded.network if isinstance(loaded, NoisePredictor) else loaded
    x = torch.rand(1, channels, 32, 32)
    network.eval()
    torch.testing.assert_close(inner(x, 0.1), network(x, 0.1))


def test_noise_predictor_takes_every_kind_of_sigma() -> None:
    denoiser = load_denoiser("drunet")
    x = torch.rand(2, 3, 32, 32)
    plain = denoiser(x, 0.05)
    for sigma in (torch.tensor(0.05), torch.tensor([0.05, 0.05]), torch.full((2, 1, 1, 1), 0.05)):
        torch.testing.assert_close(denoiser(x, sigma), plain)


def test_grey_refuses_colour() -> None:
    with pytest.raises(ValueError, match=r"grey image \(B, 1, H, W\)"):
        load_denoiser("ffdnet", channels=1)(torch.zeros(1, 3, 32, 32), 0.1)


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a denoiser that ships"):
        load_denoiser("dncnn")
    with pytest.raises(ValueError, match="channels must be 1 or 3"):
        load_denoiser(channels=2)
    text = tmp_path / "text.pt"
    text.write_text("no weights")
    with pytest.raises(ValueError, match="can't be read as a weights file"):
        load_denoiser(text)
    other = tmp_path / "other.pt"
    torch.save({"conv.weight": torch.zeros(3)}, other)
    with pytest.raises(ValueError, match="neither FFDNet nor DRUNet"):
        load_denoiser(other)
    torch.save([1, 2], other)
    with pytest.raises(ValueError, match="no state_dict"):
        load_denoiser(other)
    torch.save(FFDNet(4, 8, 1, pretrained=None).state_dict(), other)
    with pytest.raises(ValueError, match="network for grey images"):
        load_denoiser(other)


def test_refuses_code_in_a_weights_file(tmp_path: Path) -> None:
    path = tmp_path / "pickle.pt"
    torch.save({"a": Path("a")}, path)
    with pytest.raises(ValueError, match="can't be read as a weights file"):
        load_denoiser(path)


def test_full_drunet_comes_from_the_cache_or_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    file = weights_file("drunet-full")
    assert file.parent == tmp_path / "checkpoints"

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise URLError("no network here")

    monkeypatch.setattr("deepinv.models.drunet.load_state_dict_from_url", fail)
    with pytest.raises(OSError, match=r"no network here.*copy them to") as raised:
        load_denoiser("drunet-full")
    assert str(file) in str(raised.value)
    # Once it is there, nobody is asked.
    file.parent.mkdir()
    weights = DRUNet(3, 3, nc=(4, 4, 8, 8), nb=1, pretrained=None).state_dict()
    torch.save(weights, file)
    network = load_denoiser("drunet-full")
    assert network(torch.rand(1, 3, 16, 16), 0.05).shape == (1, 3, 16, 16)
