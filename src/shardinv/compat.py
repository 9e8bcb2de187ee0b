"""The names under which users of ``deepinv.distributed`` know things.

Each is a thin shim over shardinv's own block: the constructors take the arguments that DeepInverse
documents, and what :func:`shardinv.distribute` makes is an instance of these classes too. Nothing
is computed here. What differs on purpose is in ``docs/migrating.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from shardinv import denoise, fidelity, physics
from shardinv.context import DistributedContext
from shardinv.denoise import TilingOptions
from shardinv.distribute import check_gather_strategy, distribute
from shardinv.exchange import crop
from shardinv.physics.operators import deal_operators
from shardinv.training import average_gradients

__all__ = [
    "DistributedContext",
    "DistributedDataFidelity",
    "DistributedProcessing",
    "DistributedReplicatedParameters",
    "DistributedStackedLinearPhysics",
    "DistributedStackedPhysics",
    "Tiles",
    "create_strategy",
    "distribute",
]


class _SameAsParent(type):
    """What is an instance of a shim's parent is one of the shim: only the constructors differ."""

    def __instancecheck__(cls, instance: Any) -> bool:
        # Not for a class that a user derives from a shim.
        shim = cls.__module__ == __name__
        return isinstance(instance, cls.__mro__[1]) if shim else super().__instancecheck__(instance)


class DistributedStackedPhysics(physics.DistributedStackedPhysics, metaclass=_SameAsParent):
    """A stack of operators made by a factory, each on the rank that owns it.

    Parameters
    ----------
    ctx
        The ranks.
    num_operators
        How many operators the factory makes.
    factory
        ``factory(index, device, factory_kwargs)``, called on the operator's own rank only.
    factory_kwargs
        Handed to the factory as its third argument.
    dtype
        Type to convert real floating parameters to; None leaves them.
    gather_strategy
        ``"naive"``, ``"concatenated"`` or ``"broadcast"``: the same message in all three.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        num_operators: int,
        factory: Callable[..., Any],
        *,
        factory_kwargs: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
        gather_strategy: str = "concatenated",
    ) -> None:
        check_gather_strategy(gather_strategy)
        dealt = deal_operators(
            factory, ctx, num_operators=num_operators, factory_kwargs=factory_kwargs, dtype=dtype
        )
        super().__init__(ctx, dealt)


class DistributedStackedLinearPhysics(
    physics.DistributedStackedLinearPhysics, metaclass=_SameAsParent
):
    """A stack of linear operators made by a factory; parameters as for the class above.

    Parameters
    ----------
    reduction
        How the adjoint combines the operators' images: ``"sum"``, ``"mean"`` or None.

    Raises
    ------
    ValueError
        If an operator is not linear.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        num_operators: int,
        factory: Callable[..., Any],
        *,
        factory_kwargs: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
        gather_strategy: str = "concatenated",
        reduction: str | None = "sum",
    ) -> None:
        check_gather_strategy(gather_strategy)
        dealt = deal_operators(
            factory, ctx, num_operators=num_operators, factory_kwargs=factory_kwargs, dtype=dtype
        )
        if not dealt.linear:
            raise ValueError(
                "not all operators are linear: make a DistributedStackedPhysics of them"
            )
        super().__init__(ctx, dealt, reduction)


class DistributedDataFidelity(fidelity.DistributedDataFidelity, metaclass=_SameAsParent):
    """The fidelity of a distributed stack.

    Parameters
    ----------
    ctx
        The ranks.
    data_fidelity
        A fidelity for all operators, a list or stack with one for each, or a factory.
    num_operators
        How many terms a factory makes; with anything else, a check.
    factory_kwargs
        Handed to the factory as its third argument.
    reduction
        ``"sum"`` or ``"mean"`` over the operators.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        data_fidelity: Any,
        num_operators: int | None = None,
        *,
        factory_kwargs: Mapping[str, Any] | None = None,
        reduction: str = "sum",
    ) -> None:
        super().__init__(
            ctx, data_fidelity, num_operators, factory_kwargs=factory_kwargs, reduction=reduction
        )


class DistributedProcessing(denoise.DistributedProcessing, metaclass=_SameAsParent):
    """A network, or any function of an image, on overlapping tiles.

    Parameters
    ----------
    ctx
        The ranks.
    processor
        Keeps the spatial shape of an image ``(B, C, *spatial)``.
    strategy
        None is the only value: tiles are cut by ``strategy_kwargs``.
    strategy_kwargs
        ``patch_size``, ``overlap``, ``tiling_dims``, ``stride``, as of ``distribute``.
    max_batch_size
        Most tiles in one call of the network.
    checkpoint_batches, checkpoint_use_reentrant, checkpoint_preserve_rng_state
        As of ``distribute``.

    Raises
    ------
    NotImplementedError
        If a strategy is given.
    TypeError
        If ``strategy_kwargs`` names something else.
    """

    def __init__(
        self,
        ctx: DistributedContext,
        processor: Callable[..., torch.Tensor],
        *,
        strategy: None = None,
        strategy_kwargs: Mapping[str, Any] | None = None,
        max_batch_size: int | None = None,
        checkpoint_batches: str = "auto",
        checkpoint_use_reentrant: bool = False,
        checkpoint_preserve_rng_state: bool = True,
    ) -> None:
        if strategy is not None:
            raise NotImplementedError(
                "strategy must be None: tiles are cut by strategy_kwargs=dict(patch_size=..., "
                "overlap=..., tiling_dims=...)"
            )
        if checkpoint_use_reentrant:
            raise ValueError(
                "checkpoint_use_reentrant must be False: re-entrant checkpointing loses gradients "
                "without saying so"
            )
        options = TilingOptions(
            **(strategy_kwargs or {}),
            max_batch_size=max_batch_size,
            checkpoint_batches=checkpoint_batches,
        )
        super().__init__(
            ctx, processor, options, checkpoint_preserve_rng_state=checkpoint_preserve_rng_state
        )


class DistributedReplicatedParameters:
    """Averages the gradients of parameters over ranks that work on different data.

    Parameters
    ----------
    ctx
        The ranks.
    parameters
        The same ones, in the same order, on every rank; they get rank 0's values.
    average
        True is the only value.
    """

    def __init__(
        self, ctx: DistributedContext, parameters: Sequence[nn.Parameter], average: bool = True
    ) -> None:
        if not average:
            raise ValueError(
                "average must be True: for a sum over ranks, multiply the loss by ctx.world_size"
            )
        self._hooks = average_gradients(parameters, ctx)

    def remove_hooks(self) -> None:
        """Leave the gradients alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class Tiles:
    """The tiles that a network is run on, for a program that runs it by itself.

    Made by :func:`create_strategy`. A patch is a tile's window: its core and a halo on interior
    sides. Putting patches back keeps the cores.

    Parameters
    ----------
    img_size
        ``(B, C, *spatial)``.
    options
        How the image is cut.
    stride
        Cores and windows start at multiples of it, in pixels.

    Examples
    --------
    >>> tiles = create_strategy((1, 1, 16, 16), patch_size=8, overlap=2, stride=1)
    >>> x = torch.rand(1, 1, 16, 16)
    >>> pairs = tiles.get_local_patches(x, [0, 1, 2, 3])
    >>> [tuple(patch.shape[2:]) for _, patch in pairs]
    [(10, 10), (10, 10), (10, 10), (10, 10)]
    >>> out = torch.zeros_like(x)
    >>> tiles.reduce_patches(out, pairs)
    >>> torch.equal(out, x)
    True
    """

    def __init__(self, img_size: Sequence[int], options: TilingOptions, stride: int) -> None:
        self.img_size = tuple(img_size)
        self.grid = options.grid(self.img_size[2:], stride)

    def get_num_patches(self) -> int:
        """Number of tiles."""
        return len(self.grid.tiles)

    def get_local_patches(
        self, x: torch.Tensor, local_indices: Sequence[int]
    ) -> list[tuple[int, torch.Tensor]]:
        """The windows of the tiles with the given indices, each with its index."""
        return [(i, crop(x, self.grid.tiles[i].window)) for i in local_indices]

    def apply_batching(
        self, patches: Sequence[torch.Tensor], max_batch_size: int | None = None
    ) -> list[torch.Tensor]:
        """Stack neighbours of one shape along the batch axis, in order."""
        batches: list[list[torch.Tensor]] = []
        for patch in patches:
            last = batches[-1] if batches else []
            room = max_batch_size is None or len(last) < max_batch_size
            if last and room and last[0].shape == patch.shape:
                last.append(patch)
            else:
                batches.append([patch])
        return [torch.cat(batch) for batch in batches]

    def unpack_batched_results(
        self, processed_batches: Sequence[torch.Tensor], num_patches: int
    ) -> list[torch.Tensor]:
        """Take batches apart again, in order.

        Raises
        ------
        ValueError
            If the batches don't hold that number of patches.
        """
        images = sum(batch.shape[0] for batch in processed_batches)
        size = self.img_size[0]
        if images != num_patches * size:
            raise ValueError(
                f"{num_patches} patches of {size} images are expected, the batches hold {images} "
                "images in all"
            )
        return [patch for batch in processed_batches for patch in batch.split(size)]

    def reduce_patches(
        self, out_tensor: torch.Tensor, local_pairs: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """Write the core of each patch to its place, in place."""
        for index, patch in local_pairs:
            tile = self.grid.tiles[index]
            crop(out_tensor, tile.core).copy_(crop(patch, tile.core, tile.window))


def create_strategy(
    img_size: Sequence[int],
    tiling_dims: int | tuple[int, ...] | None = None,
    *,
    patch_size: int | tuple[int, ...] = 256,
    overlap: int | tuple[int, ...] = 64,
    stride: int = 8,
) -> Tiles:
    """Describe the tiles that ``distribute(network, ctx, ...)`` cuts an image into.

    Parameters
    ----------
    img_size
        ``(B, C, *spatial)``.
    tiling_dims, patch_size, overlap
        As of ``distribute``.
    stride
        That of the network in pixels, which ``distribute`` finds by itself. The default is
        DRUNet's, and right for every network whose stride divides it.
    """
    options = TilingOptions(patch_size=patch_size, overlap=overlap, tiling_dims=tiling_dims)
    return Tiles(img_size, options, stride)


def _distribute_base_optim(model: Any, ctx: DistributedContext, **tiling: Any) -> Any:
    """Distribute an unrolled solver in place, and return it."""
    return distribute(model, ctx, type_object="module", **tiling)
