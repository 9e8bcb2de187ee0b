"""A network for images turned into one for volumes, with the weights that it has."""

from __future__ import annotations

import copy

import torch
from deepinv.models import DRUNet
from torch import Tensor, nn


def inflate(network: nn.Module) -> nn.Module:
    """A DRUNet for volumes from one for images, wrapped as the latter is.

    Kernels get a third axis. Those of three pixels keep their weights in its middle, so that each
    slice is denoised as an image; those that halve the resolution average two slices, and those
    that double it give both the same. A starting point for training, and a denoiser of slices that
    know of their neighbours at the coarser levels.

    Parameters
    ----------
    network
        A `deepinv.models.DRUNet`, or a module that holds one.

    Returns
    -------
    torch.nn.Module
        A copy; takes ``(B, C, D, H, W)``.

    Raises
    ------
    ValueError
        If there is no DRUNet in it.
    """
    if isinstance(network, DRUNet):
        return _inflated(network)
    found = copy.deepcopy(network)
    for name, child in network.named_children():
        if isinstance(child, DRUNet):
            setattr(found, name, _inflated(child))
            return found
        if any(isinstance(module, DRUNet) for module in child.modules()):
            setattr(found, name, inflate(child))
            return found
    raise ValueError(f"{type(network).__name__} holds no DRUNet, the one network that is inflated")


def _inflated(network: DRUNet) -> DRUNet:
    weights = {name: value.detach() for name, value in network.state_dict().items()}
    widths = tuple(
        int(weights[f"{stage}.weight"].shape[0])
        for stage in ("m_head", "m_down2.0.res.0", "m_down3.0.res.0")
    )
    body = next(value for name, value in weights.items() if name.startswith("m_body"))
    blocks = sum(1 for name in {n.split(".")[1] for n in weights if n.startswith("m_down1.")})
    channels = int(weights["m_tail.weight"].shape[0])
    volumetric = DRUNet(
        channels,
        channels,
        nc=(*widths, int(body.shape[0])),
        nb=blocks - 1,  # the last one halves the resolution
        pretrained=None,
        dim=3,
    )
    shapes = volumetric.state_dict()
    volumetric.load_state_dict(
        {name: _deepen(name, value, shapes[name].shape[2]) for name, value in weights.items()}
    )
    return volumetric.eval().requires_grad_(False).to(next(network.parameters()).device)


def _deepen(name: str, weight: Tensor, depth: int) -> Tensor:
    if depth % 2:
        deep = weight.new_zeros(*weight.shape[:2], depth, *weight.shape[2:])
        deep[:, :, depth // 2] = weight
        return deep
    repeated = torch.stack([weight] * depth, dim=2)
    return repeated if name.startswith("m_up") else repeated / depth
