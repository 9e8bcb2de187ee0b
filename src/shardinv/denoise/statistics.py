"""Networks in training that draw random numbers or keep statistics, on any number of ranks alike.

Such a network sees one tile at a time. What it draws for a tile (dropout) follows from the tile's
number; what it remembers (the running statistics of a batch normalisation) is averaged over the
tiles of all ranks, weighted by their pixels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm

from shardinv.exchange import Communicator, all_reduce


def draws_random_numbers(network: Any) -> bool:
    """Whether a network has dropout that is switched on."""
    return isinstance(network, nn.Module) and any(
        isinstance(part, (_DropoutNd, nn.RReLU))
        and part.training
        and (not isinstance(part, _DropoutNd) or part.p > 0)
        for part in network.modules()
    )


def keeps_statistics(network: Any) -> bool:
    """Whether a call of a network changes its buffers: running statistics, spectral norms."""
    return isinstance(network, nn.Module) and any(
        part.training
        and (
            (isinstance(part, _NormBase) and part.track_running_stats)
            or (
                parametrize.is_parametrized(part)
                and any(isinstance(made, _SpectralNorm) for made in part.modules())
            )
        )
        for part in network.modules()
    )


@contextmanager
def drawing_from(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw from a stream of its own inside; afterwards the default generators are as before."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class Statistics:
    """The buffers that the calls of one image leave behind, averaged over all ranks' tiles.

    Parameters
    ----------
    network
        Whose buffers they are. Each call starts from what they were before the first.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._before = {name: b.detach().clone() for name, b in network.named_buffers()}
        self._sums = {name: torch.zeros_like(b, dtype=torch.float64) for name, b in self._items()}
        self._pixels = 0
        self._done: set[Hashable] = set()

    def _items(self) -> list[tuple[str, torch.Tensor]]:
        return [(n, b) for n, b in self._before.items() if not b.is_complex()]

    def fresh(self) -> dict[str, torch.Tensor]:
        """Buffers for one call, which it may change."""
        return {name: buffer.clone() for name, buffer in self._before.items()}

    def add(self, call: Hashable, buffers: dict[str, torch.Tensor], pixels: int) -> None:
        """Take note of what a call on so many pixels has made of its buffers.

        A call that is made again, in a backward pass, has been counted.
        """
        if call in self._done:
            return
        self._done.add(call)
        self._pixels += pixels
        for name, total in self._sums.items():
            total += pixels * buffers[name].detach().double()

    def keep(self, comm: Communicator) -> None:
        """Give every rank's network the averages. One message to each other rank."""
        parts = [total.reshape(-1) for total in self._sums.values()]
        device = comm.device
        count = torch.tensor([float(self._pixels)], dtype=torch.float64, device=device)
        flat = all_reduce(comm, torch.cat([*(part.to(device) for part in parts), count]))
        means = (flat[:-1] / flat[-1]).split([part.numel() for part in parts])
        own = dict(self._network.named_buffers())
        with torch.no_grad():
            for (name, total), mean in zip(self._sums.items(), means, strict=True):
                buffer = own[name]
                mean = mean.view(total.shape)
                buffer.copy_(mean if buffer.is_floating_point() else mean.round())
