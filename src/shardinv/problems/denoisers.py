"""Pretrained denoisers: the two that ship with the package, and a user's own weights.

Distribution is not their business: `shardinv.distribute` tiles what is loaded here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deepinv.models import DRUNet, FFDNet
from deepinv.models.base import Denoiser
from torch import Tensor

from shardinv.io import WEIGHTS, shipped_file

# Too large to ship: DeepInverse's own, by channels, fetched once and kept in torch's cache.
DOWNLOADED = "drunet-full"
_FULL = {
    3: "drunet_deepinv_color_finetune_22k.pth",
    1: "drunet_deepinv_gray_finetune_26k.pth",
}


class NoisePredictor(Denoiser):
    r"""A denoiser made of a network that predicts noise of unit variance, :math:`x - σ\,N(x, σ)`.

    Whatever the network answers, the image moves in proportion to σ, so a small network does no
    harm at small σ.

    Parameters
    ----------
    network
        Called as ``network(x, sigma)``; returns the shape of ``x``, ``(B, C, H, W)``.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, sigma: float | Tensor, **kwargs: Any) -> Tensor:
        """Denoise ``(B, C, H, W)``; ``sigma`` is a number, one each image, or a map."""
        scale = sigma
        if isinstance(sigma, Tensor) and sigma.numel() > 1 and sigma.dim() < x.dim():
            scale = sigma.reshape(-1, *[1] * (x.dim() - 1))
        return x - scale * self.network(x, sigma)


class GreyByColour(Denoiser):
    r"""A colour denoiser for grey images.

    The image is repeated in three channels and the three answers are averaged. The noise is then
    the same in every channel, of which a colour denoiser sees only a third as noise: it is told
    :math:`\sqrt 3\,σ`.

    Parameters
    ----------
    colour
        A denoiser of images ``(B, 3, H, W)``.
    """

    def __init__(self, colour: torch.nn.Module) -> None:
        super().__init__()
        self.colour = colour

    def forward(self, x: Tensor, sigma: float | Tensor, **kwargs: Any) -> Tensor:
        """Denoise ``(B, 1, H, W)``, or a volume with one more axis."""
        if x.shape[1] != 1:
            raise ValueError(f"a grey image (B, 1, H, W) is needed, got shape {tuple(x.shape)}")
        three = self.colour(x.repeat(1, 3, *[1] * (x.dim() - 2)), math.sqrt(3) * sigma)
        return three.mean(1, keepdim=True)


def load_denoiser(
    name_or_path: str | Path = "ffdnet",
    *,
    channels: int = 3,
    device: torch.device | str = "cpu",
) -> Denoiser:
    """Load a pretrained denoiser for images in [0, 1], in evaluation mode, without gradients.

    Parameters
    ----------
    name_or_path
        ``"ffdnet"``: the colour FFDNet (Zhang, Zuo, Zhang 2018), for σ from 0 to 75/255.
        ``"drunet"``: a small DRUNet trained for this package, for σ up to about 10/255.
        ``"drunet-full"``: DeepInverse's own, which is downloaded once and kept in torch's cache.
        Or the path of a weights file for one of the two networks or for the full-size
        `deepinv.models.DRUNet` or `FFDNet`, colour or grey, as their ``state_dict``. Widths and
        depth are read off the shapes; whether a network answers with the image or with unit noise
        (then it is wrapped in `NoisePredictor`) by asking it for a flat grey image.
    channels
        Channels of the images: 3, or 1, for which a colour network is wrapped in `GreyByColour`.

    Returns
    -------
    Denoiser
        Called as ``denoiser(x, sigma)`` with ``x`` of shape ``(B, channels, H, W)``. FFDNet needs
        even ``H`` and ``W``.

    Raises
    ------
    ValueError
        If the name is unknown, or the file can't be read as weights of a known network.
    OSError
        If it can't be downloaded.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, got {channels}")
    path = weights_file(name_or_path, channels)
    if not path.is_file() and str(name_or_path) == DOWNLOADED:
        _download(path, channels)
    if not path.is_file():
        raise ValueError(
            f"{str(name_or_path)!r} is neither a denoiser that ships ({', '.join(WEIGHTS)}), nor "
            f"{DOWNLOADED}, nor a weights file"
        )
    weights = _read_weights(path)
    network, own_channels = _network_for(weights, path)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} does not fit {type(network).__name__}: {reason}") from error
    network.eval()
    if _predicts_noise(network, own_channels):
        network = NoisePredictor(network)
    if own_channels == 3 and channels == 1:
        network = GreyByColour(network)
    elif own_channels != channels:
        raise ValueError(f"{path} holds a network for grey images; the image has colour")
    return network.eval().requires_grad_(False).to(device)


def weights_file(name_or_path: str | Path, channels: int = 3) -> Path:
    """The file that :func:`load_denoiser` reads, whether it is there or not."""
    if str(name_or_path) in WEIGHTS:
        return shipped_file(str(name_or_path))
    if str(name_or_path) == DOWNLOADED:
        return Path(torch.hub.get_dir()) / "checkpoints" / _FULL[channels]
    return Path(name_or_path)


def _download(path: Path, channels: int) -> None:
    try:
        DRUNet(channels, channels, pretrained="download")
    except OSError as error:
        reason = " ".join(str(error).split())
        raise OSError(
            f"the weights {path.name} can't be downloaded ({reason}): fetch them once where there "
            f"is a network, with deepinv.models.DRUNet(pretrained='download'), and copy them to "
            f"{path}"
        ) from error


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own message proposes to load it unsafely.
        raise ValueError(
            f"{path} can't be read as a weights file: a state_dict saved by torch.save is needed"
        ) from error
    # Training scripts keep the weights beside the optimiser's state.
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path} holds no state_dict (names and tensors)")
    return {name: value.float() for name, value in content.items()}


def _network_for(weights: Mapping[str, Tensor], path: Path) -> tuple[Denoiser, int]:
    """A network of the shapes of ``weights``, and its number of channels."""
    if "m_head.weight" in weights and "m_tail.weight" in weights:
        return _drunet_for(weights)
    first = weights.get("blocks.0.0.weight")
    if first is not None:
        layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        channels = first.shape[1] // 4 - 1
        network = FFDNet(
            n_conv_layers=layers,
            nf=first.shape[0],
            img_channels=channels,
            norm=None,
            last_conv_bias=f"blocks.{layers - 1}.bias" in weights,
            pretrained=None,
        )
        return network, channels
    names = ", ".join(list(weights)[:3])
    raise ValueError(
        f"{path} holds weights of neither FFDNet nor DRUNet (its first names are {names}); load "
        "the network yourself and hand it to shardinv.distribute"
    )


def _drunet_for(weights: Mapping[str, Tensor]) -> tuple[Denoiser, int]:
    def blocks(stage: str) -> int:
        return len({name.split(".")[1] for name in weights if name.startswith(f"{stage}.")})

    # A body of a single block is not numbered.
    body = "m_body.0.res.0" if "m_body.0.res.0.weight" in weights else "m_body.res.0"
    stages = ("m_head", "m_down2.0.res.0", "m_down3.0.res.0", body)
    try:
        widths = tuple(int(weights[f"{stage}.weight"].shape[0]) for stage in stages)
    except KeyError as missing:
        raise ValueError(f"weights of a DRUNet without {missing}: the file is incomplete") from None
    channels = int(weights["m_tail.weight"].shape[0])
    network = DRUNet(channels, channels, nc=widths, nb=blocks("m_body"), pretrained=None)
    return network, channels


@torch.no_grad()
def _predicts_noise(network: torch.nn.Module, channels: int) -> bool:
    """Whether a network answers a flat grey image with noise (about 0) instead of it (0.5)."""
    flat = torch.full((1, channels, 32, 32), 0.5)
    return bool(network(flat, 0.02).mean() < 0.25)
