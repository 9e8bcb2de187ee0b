"""What the iterations of an unrolled solver keep for the backward pass, and what they compute anew.

Keeping everything is fastest. Where that does not fit, the activations of each batch of tiles are
computed anew in the backward pass, or whole iterations, or both: each keeps less and computes more.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepinv.optim import BaseOptim
from torch import nn
from torch.utils._pytree import tree_leaves

from shardinv.context import DistributedContext
from shardinv.denoise import DistributedProcessing
from shardinv.denoise.memory import SavedBytes, memory_left, show_memory
from shardinv.exchange import publish
from shardinv.tensor import ShardedTensor
from shardinv.training.anchor import recompute_together

MODES = ("never", "tiles", "iterations", "both")
"""From the fastest to the one that keeps least."""

_WORDS = {
    "never": "all activations are kept",
    "tiles": "those of each batch of tiles are computed anew",
    "iterations": "each iteration is computed anew",
    "both": "each iteration is computed anew, and in it each batch of tiles",
}
_SHARE = 0.8
"""Part of the memory that is left which a training step may take, where no budget is given."""


@dataclass(frozen=True)
class Kept:
    """Bytes that an iteration keeps on one rank, and what there is.

    Parameters
    ----------
    activations, batch, windows
        Of the networks: all activations, those of the largest batch of tiles, the windows.
    rest
        Of everything else: operators, fidelities, the solver's own arithmetic.
    iterate
        The iterate itself.
    weights
        Gradients of the weights, and two moments of an optimiser.
    budget
        What may be taken.
    """

    activations: int
    batch: int
    windows: int
    rest: int
    iterate: int
    weights: int
    budget: int

    def peak(self, mode: str, iterations: int) -> int:
        """The most that a training step takes, above what was there before it."""
        whole, sparing = self.activations + self.rest, self.windows + self.rest
        held = {
            "never": iterations * whole,
            "tiles": iterations * sparing + self.batch,
            "iterations": iterations * self.iterate + whole,
            "both": iterations * self.iterate + sparing + self.batch,
        }
        return held[mode] + self.weights


@dataclass(frozen=True)
class MemoryPlan:
    """What is computed anew in the backward pass of an unrolled solver.

    Parameters
    ----------
    mode
        One of ``MODES``.
    iterations
        Of the solver.
    ranks
        What an iteration keeps on each rank.
    """

    mode: str
    iterations: int
    ranks: tuple[Kept, ...]

    @classmethod
    def choose(cls, iterations: int, ranks: Sequence[Kept]) -> MemoryPlan:
        """The fastest way that fits on every rank, or else the one that keeps least."""
        fits = (
            mode
            for mode in MODES
            if all(kept.peak(mode, iterations) <= kept.budget for kept in ranks)
        )
        return cls(next(fits, MODES[-1]), iterations, tuple(ranks))

    @property
    def peaks(self) -> dict[str, int]:
        """For each way, the most that a training step takes on the fullest rank, in bytes."""
        return {mode: max(k.peak(mode, self.iterations) for k in self.ranks) for mode in MODES}

    def __str__(self) -> str:
        budget = min(kept.budget for kept in self.ranks)
        peaks = self.peaks
        others = ", ".join(f"{mode} {show_memory(peaks[mode])}" for mode in MODES)
        text = (
            f"a training step of {self.iterations} iterations: {_WORDS[self.mode]} "
            f"(checkpoint={self.mode!r}); predicted peak {show_memory(peaks[self.mode])} of "
            f"{show_memory(budget)} a rank ({others})"
        )
        if peaks[self.mode] > budget:
            text += "; it does not fit: use smaller tiles, more ranks, or sharded images"
        return text


class Checkpointing:
    """Computes iterations of an unrolled solver anew in the backward pass, as a plan says.

    Parameters
    ----------
    ctx
        The ranks.
    mode
        One of ``MODES``, or ``"auto"``, which measures the first iteration that is trained.
    memory
        Bytes that a training step may take on each rank; None takes most of what is left.
    iterations
        Of the solver.
    weights
        Bytes of what is trained.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        mode: str,
        memory: int | None,
        iterations: int,
        weights: int,
    ) -> None:
        if mode not in ("auto", *MODES):
            raise ValueError(f"checkpoint must be one of auto, {', '.join(MODES)}, got {mode!r}")
        self.ctx, self.mode, self.memory = ctx, mode, memory
        self.iterations, self.weights = iterations, weights
        self.plans: dict[Hashable, MemoryPlan] = {}

    def run(self, iterate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One iteration: ``iterate(X, fidelity, prior, parameters, y, physics, ...)``."""
        if not torch.is_grad_enabled():
            return iterate(*args, **kwargs)
        used = [value for value in args if isinstance(value, nn.Module)]
        blocks = [
            part
            for module in used
            for part in module.modules()
            if isinstance(part, DistributedProcessing)
        ]
        if self.mode != "auto":
            return self._as(self.mode, blocks, iterate, args, kwargs)
        tensors = [leaf for leaf in tree_leaves(args[0]) if isinstance(leaf, torch.Tensor)]
        key = tuple((tuple(t.shape), t.dtype, isinstance(t, ShardedTensor)) for t in tensors)
        if key in self.plans:
            return self._as(self.plans[key].mode, blocks, iterate, args, kwargs)
        result, kept = self._measured(used, blocks, iterate, args, kwargs, tensors)
        if kept is not None:
            ranks = publish(self.ctx.comm, "the memory of an iteration", kept)
            plan = self.plans[key] = MemoryPlan.choose(self.iterations, ranks)
            if self.ctx.is_main:
                print(f"shardinv: {plan}", file=sys.stderr)
        return result

    def _as(
        self,
        mode: str,
        blocks: Sequence[DistributedProcessing],
        iterate: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        tiles = mode in ("tiles", "both")

        def run(*inputs: Any, **named: Any) -> Any:
            # Also when it is called again: by then the blocks may have served another model.
            with recomputing(blocks, tiles):
                return iterate(*inputs, **named)

        if mode in ("iterations", "both"):
            return recompute_together(run, *args, **kwargs)
        return run(*args, **kwargs)

    def _measured(
        self,
        used: Sequence[nn.Module],
        blocks: Sequence[DistributedProcessing],
        iterate: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
    ) -> tuple[Any, Kept | None]:
        """An iteration that keeps little, and what it would keep."""
        # Before it runs: what it keeps is not left for the others.
        left = memory_left(self.ctx.device)
        own = [t for module in used for t in (*module.parameters(), *module.buffers())]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        with recomputing(blocks, True, measure=True), SavedBytes([*own, *inputs]) as saved:
            result = iterate(*args, **kwargs)
        if not any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(result)
        ):
            return result, None
        networks = [block.activations for block in blocks if block.activations is not None]
        return result, Kept(
            activations=sum(network.all for network in networks),
            batch=max((network.batch for network in networks), default=0),
            windows=sum(network.inputs for network in networks),
            rest=saved.count,
            iterate=sum(_nbytes(tensor) for tensor in tensors),
            weights=3 * self.weights,
            budget=int(_SHARE * left) if self.memory is None else self.memory,
        )


class recomputing:
    """Within it the networks compute activations anew, or don't, whatever they would do."""

    def __init__(
        self, blocks: Sequence[DistributedProcessing], tiles: bool, measure: bool = False
    ) -> None:
        self._blocks, self._tiles, self._measure = blocks, tiles, measure

    def __enter__(self) -> None:
        self._before = [(block.recompute, block.measure) for block in self._blocks]
        for block in self._blocks:
            block.recompute, block.measure = self._tiles, self._measure
            if self._measure:
                block.activations = None

    def __exit__(self, *error: Any) -> None:
        for block, (recompute, measure) in zip(self._blocks, self._before, strict=True):
            block.recompute, block.measure = recompute, measure


def _nbytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, ShardedTensor) else tensor
    return local.numel() * local.element_size()


def checkpoint_iterations(
    model: BaseOptim, ctx: DistributedContext, mode: str, memory: int | None
) -> None:
    """Let a distributed solver compute iterations or activations anew in the backward pass.

    In place: the step of its iteration becomes an instance of a subclass of its own class.

    Parameters
    ----------
    model
        An unrolled solver whose blocks are distributed.
    ctx
        The ranks.
    mode, memory
        As for :class:`Checkpointing`.

    Raises
    ------
    ValueError
        If there is no such mode.
    """
    iterator: Any = model.fixed_point.iterator
    weights = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    iterator.checkpointing = Checkpointing(ctx, mode, memory, int(model.max_iter), weights)
    kind = type(iterator)
    if "checkpointed" in kind.__dict__:
        return
    described = {"__module__": kind.__module__, "__doc__": kind.__doc__, "checkpointed": True}
    forward = _checkpointed(kind.forward)
    iterator.__class__ = type(kind.__name__, (kind,), {**described, "forward": forward})


def keep_iterations(model: BaseOptim) -> None:
    """Undo :func:`checkpoint_iterations`."""
    iterator = model.fixed_point.iterator
    if "checkpointed" in type(iterator).__dict__:
        iterator.__class__ = type(iterator).__bases__[0]
        del iterator.checkpointing


def _checkpointed(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.checkpointing.run(functools.partial(plain, self), *args, **kwargs)

    return forward
