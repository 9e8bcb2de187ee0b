"""Data loaders that give every rank the same samples in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from deepinv.utils.tensorlist import TensorList
from torch.utils._pytree import tree_leaves

from shardinv.context import DistributedContext
from shardinv.exchange import DisagreementError, all_reduce, publish
from shardinv.tensor import ShardedTensor
from shardinv.training.trainer.randomness import as_rank_zero, share_generators


class SameSamples:
    """A data loader whose shuffling and random draws are rank 0's on every rank.

    Parameters
    ----------
    loader
        Any iterable of samples. Generators of a ``DataLoader`` and its sampler are put into the
        state of rank 0's when an epoch begins.
    ctx
        The ranks.
    """

    def __init__(self, loader: Any, ctx: DistributedContext) -> None:
        self.loader, self.ctx = loader, ctx

    def __iter__(self) -> Iterator[Any]:
        share_generators(self.ctx, _generators(self.loader))
        with as_rank_zero(self.ctx):
            return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "ctx"):
            raise AttributeError(name)
        return getattr(self.loader, name)


def _generators(loader: Any) -> list[torch.Generator]:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found: dict[int, torch.Generator] = {}
    for source in (loader, sampler, inner):
        generator = getattr(source, "generator", None)
        if isinstance(generator, torch.Generator):
            found[id(generator)] = generator
    return list(found.values())


def check_samples(ctx: DistributedContext, *samples: Any) -> None:
    """Raise on every rank unless all ranks have loaded the same sample. One small message.

    Raises
    ------
    DisagreementError
        If not: if the loader gives each rank samples of its own.
    """
    if ctx.world_size == 1:
        return
    digest = torch.zeros(3, dtype=torch.float64, device=ctx.device)
    for tensor in _tensors(samples):
        values = tensor.detach().resolve_conj()
        values = torch.view_as_real(values) if values.is_complex() else values
        values = values.double()
        place = torch.cos(torch.arange(values.numel(), device=values.device) % 1009)
        digest += torch.stack(
            [
                values.abs().sum(),
                (values.reshape(-1) * place).sum(),
                values.new_tensor(tensor.numel()),
            ]
        ).to(digest.device)
    with ctx.ledger.block("trainer"):
        ends = all_reduce(ctx.comm, torch.cat([digest, -digest]), "max")
    if not bool((ends[:3] + ends[3:] > 1e-9 * ends[0].abs()).any()):
        return
    sums = publish(ctx.comm, "the sums of samples", [f"{v:.9e}" for v in digest.tolist()[:1]])
    told = "; ".join(f"rank {rank}: {', '.join(s)}" for rank, s in enumerate(sums))
    raise DisagreementError(
        f"ranks loaded different samples (sums of magnitudes: {told}). All ranks work on one "
        "sample together, so each must load the same: use a plain sampler instead of a "
        "DistributedSampler, and no data that a rank draws by itself. For samples side by side, "
        "give each group of ranks a context of its own (examples/hybrid.py)"
    )


def _tensors(samples: Any) -> list[torch.Tensor]:
    """What every rank should hold alike: not what is sharded, nor measurements left where made."""
    plain = []
    for sample in samples:
        entries = list(sample.x) if isinstance(sample, TensorList) else [sample]
        plain += [
            leaf
            for leaf in tree_leaves(entries)
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, ShardedTensor)
        ]
    return plain
