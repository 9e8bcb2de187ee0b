"""Putting a distributed network into a prior."""

from __future__ import annotations

import copy
from collections.abc import Callable

from deepinv.optim.prior import Prior
from torch import nn

from shardinv.context import DistributedContext
from shardinv.denoise.neighbours import prior_on_shards
from shardinv.denoise.processing import DistributedProcessing
from shardinv.exchange import broadcast_tensors


def distribute_prior(
    prior: Prior,
    ctx: DistributedContext,
    distribute_network: Callable[[nn.Module], DistributedProcessing],
    tiled: bool,
) -> Prior:
    """A prior of the same class whose network runs on tiles.

    Parameters
    ----------
    prior
        ``PnP``, ``RED``, ``ScorePrior`` or any other with a ``denoiser``; or an explicit one (total
        variation, Tikhonov, l1, wavelets), which is exact: of an image that every rank holds, each
        evaluates it whole, without a message; of a sharded one each evaluates its box, and a row of
        pixels is sent where neighbours matter. It is put on the rank's device, with rank 0's
        weights if it has any.
    ctx
        The ranks.
    distribute_network
        Makes the block from the network.
    tiled
        Whether the caller asked for tiles.

    Raises
    ------
    ValueError
        If tiles were asked for and the prior has no network: an explicit prior on tiles would be
        another prior.
    """
    network = getattr(prior, "denoiser", None)
    if network is None:
        if tiled:
            raise ValueError(
                f"{type(prior).__name__} has no network to run on tiles; distribute it without "
                "patch_size, overlap and the other tile options, and every rank evaluates it whole"
            )
        prior.to(ctx.device)
        with ctx.ledger.block("prior"):
            broadcast_tensors(ctx.comm, [*prior.parameters(), *prior.buffers()])
        return prior_on_shards(prior)
    if isinstance(network, DistributedProcessing):
        return prior
    twin = copy.copy(prior)
    # The table is copied, or the prior given would change as well.
    twin.__dict__["_modules"] = dict(prior._modules)
    twin.denoiser = distribute_network(network)
    return twin
