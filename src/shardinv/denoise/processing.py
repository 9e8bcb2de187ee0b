"""A network on overlapping tiles: each rank computes some, every rank gets the whole image."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from deepinv.models import Denoiser
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from shardinv.blocks import check_image, check_values, share_state
from shardinv.context import DistributedContext
from shardinv.denoise.conditioning import cut_argument
from shardinv.denoise.memory import SHARE, activation_bytes, memory_left
from shardinv.denoise.statistics import (
    Statistics,
    drawing_from,
    draws_random_numbers,
    keeps_statistics,
)
from shardinv.denoise.strides import network_stride
from shardinv.denoise.tiling import Schedule, TilingOptions
from shardinv.denoise.weights import SharedWeights
from shardinv.denoise.windows import FetchedBoxes, WholeImage, Windows
from shardinv.exchange import (
    Communicator,
    DisagreementError,
    FirstUse,
    TensorSpec,
    assemble,
    broadcast_tensors,
    crop,
    fan_out,
    gather_boxes,
)
from shardinv.geometry import Box, Partition, Tile
from shardinv.physics.noise import common_seed, stream_seed
from shardinv.tensor import (
    LayoutError,
    ShardedTensor,
    Sharding,
    begin_boxes,
    deliver,
    fetch_tied,
    realign,
)


@dataclass(frozen=True)
class Activations:
    """Bytes that this rank keeps for the backward pass of one call of a network.

    Parameters
    ----------
    batch
        Of its largest batch of tiles.
    all
        Of all its batches.
    inputs
        Of the windows alone, which are what stays where activations are computed anew.
    """

    batch: int
    all: int
    inputs: int

    def __add__(self, other: Activations) -> Activations:
        """Of two calls."""
        return Activations(
            max(self.batch, other.batch), self.all + other.all, self.inputs + other.inputs
        )


@dataclass
class _Run:
    """What the calls of the network on one image have in common."""

    handles: dict[str, torch.Tensor]
    token: torch.Tensor
    seed: int | None
    statistics: Statistics | None
    recompute: bool = False

    def end(self, comm: Communicator) -> None:
        """After the last call."""
        if self.statistics is not None:
            self.statistics.keep(comm)


class DistributedProcessing(Denoiser):
    r"""A network run on overlapping tiles, which are dealt to the ranks by cost.

    Made by :func:`shardinv.distribute`. An image that every rank holds is whole on
    every rank again afterwards; of a sharded one only halos move, and the result is sharded. Each
    tile has a halo on its interior sides only; what is computed in the halo is dropped. Tiles
    follow from the image and the options, so the result does not depend on the number of ranks.

    Parameters
    ----------
    ctx
        The ranks.
    processor
        A network, or any function of an image, that keeps its spatial shape. Rank 0's weights are
        given to all ranks.
    options
        How the image is cut.
    checkpoint_preserve_rng_state
        Whether recomputed activations draw the same random numbers (dropout) as the first time.

    Raises
    ------
    ValueError
        If the options cannot cut an image (when it is called), or the network changes its shape.

    Notes
    -----
    A tile sees the image as far as its halo reaches. Where the network sees further, the result
    differs from the network's on the whole image; ``describe()`` says what the halo costs.

    A network in training with dropout draws for each tile from a stream of the tile's own. One that
    keeps running statistics sees one tile at a time, and remembers the mean over all tiles. So
    neither depends on the number of ranks.
    """

    block = "denoiser"

    def __init__(
        self,
        ctx: DistributedContext,
        processor: Callable[..., torch.Tensor],
        options: TilingOptions | None = None,
        *,
        checkpoint_preserve_rng_state: bool = True,
    ) -> None:
        super().__init__()
        self.ctx = ctx
        self.options = options if options is not None else TilingOptions()
        self.stride = self.options.stride or network_stride(processor)
        self.checkpoint_preserve_rng_state = checkpoint_preserve_rng_state
        self.first_use = FirstUse(ctx.comm, every_call=ctx.debug)
        self._schedules: dict[tuple[tuple[int, ...], Partition | None, bool], Schedule] = {}
        self._shared = SharedWeights()
        self._activations: dict[Hashable, Activations] = {}
        # Kept out of the table of submodules: the block has the network's own entries there.
        object.__setattr__(self, "processor", processor)
        if isinstance(processor, nn.Module):
            processor.to(ctx.device)
            share_state(self, processor)
            self.training = processor.training
            with ctx.ledger.block(self.block):
                broadcast_tensors(ctx.comm, [*processor.parameters(), *processor.buffers()])

    processor: Callable[..., torch.Tensor]
    # Set by an algorithm around the block: whether to compute activations anew, whether to measure
    # what a call keeps for the backward pass, and what the calls since then keep.
    recompute: bool | None = None
    measure: bool = False
    activations: Activations | None = None

    @property
    def max_batch_size(self) -> int | None:
        """Most tiles in one call of the network, as given."""
        return self.options.max_batch_size

    def train(self, mode: bool = True) -> DistributedProcessing:
        """Set training mode of the block and the network."""
        super().train(mode)
        if isinstance(self.processor, nn.Module):
            self.processor.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("processor", "ctx"):
                raise
            return getattr(self.processor, name)

    # -- calling the network ---------------------------------------------------------------------

    def forward(
        self, x: torch.Tensor, *args: Any, gather: bool = True, **kwargs: Any
    ) -> torch.Tensor:
        """Run the network on all tiles.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``, the same on every rank or sharded; any floating or complex
            type the network takes.
        *args, **kwargs
            Handed to the network. A noise level ``sigma`` may be a number, one for each image of
            the batch, or a map of the image's shape, which is cut along.
        gather
            False leaves other ranks' tiles at zero: the ranks' results sum up to the whole. No
            meaning for a sharded image.

        Returns
        -------
        torch.Tensor
            ``(B, C', *spatial)``, on every rank or sharded as the image is.

        Raises
        ------
        ValueError
            If the image is on the wrong device, too small for the options, or the network changes
            its spatial shape.
        RuntimeError
            If the network loses the gradient that was asked for, or is a function with weights that
            are not its arguments.
        """
        comm = self.ctx.comm
        with self.ctx.ledger.block(self.block):
            spec = check_image(self.ctx, self.first_use, x)
            if x.ndim < 3:
                raise ValueError(f"an image (B, C, *spatial) is needed, got shape {tuple(x.shape)}")
            sharding = x.sharding if isinstance(x, ShardedTensor) else None
            draws, counts = draws_random_numbers(self.processor), keeps_statistics(self.processor)
            schedule = self.schedule(tuple(x.shape[2:]), sharding, singly=draws or counts)
            handles, image, args, kwargs, token = self._enter(x, args, kwargs, schedule)
            tracked = token.requires_grad
            run = _Run(
                handles,
                token,
                common_seed(self.ctx) if draws else None,
                Statistics(self.processor) if counts else None,  # type: ignore[arg-type]
            )
            run.recompute = tracked and self._recomputes(run, schedule, image, spec, args, kwargs)
            outputs = (
                piece
                for batch in schedule.batches
                for piece in self._run(run, batch, image, spec, args, kwargs)
            )
            if sharding is not None:
                pieces = [core for core, _ in outputs]
                for source in (image, *args, *kwargs.values()):
                    if isinstance(source, FetchedBoxes):
                        source.finish()  # also on a rank that needed nothing of it
                run.end(comm)
                result = self._result_spec(spec, args, kwargs, pieces[0] if pieces else None)
                lead = TensorSpec(result.shape[:2], result.dtype)
                return deliver(
                    comm, pieces, schedule.layout, sharding, lead, token, operation="realign"
                )
            if tracked:
                pieces = [core for core, _ in outputs]
                run.end(comm)
                result = self._result_spec(spec, args, kwargs, pieces[0] if pieces else None)
                if not gather:
                    return self._spread(pieces, schedule, result, token)
                return assemble(comm, pieces, schedule.layout, result, token)
            whole: torch.Tensor | None = None
            for core, box in outputs:
                if whole is None:
                    shape = (*core.shape[:2], *spec.shape[2:])
                    whole = core.new_empty(shape) if gather else core.new_zeros(shape)
                crop(whole, box).copy_(core)
            run.end(comm)
            result = self._result_spec(spec, args, kwargs, whole)
            if whole is None:
                whole = result.empty(self.ctx.device).zero_()
            return gather_boxes(comm, whole, schedule.layout) if gather else whole

    def _enter(
        self,
        x: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        schedule: Schedule,
    ) -> tuple[dict[str, torch.Tensor], Windows, tuple[Any, ...], dict[str, Any], torch.Tensor]:
        """Hand the image, the weights and other inputs to this rank's part of the work."""
        weights = (
            {n: p for n, p in self.processor.named_parameters() if p.requires_grad}
            if torch.is_grad_enabled() and isinstance(self.processor, nn.Module)
            else {}
        )
        leaves, structure = tree_flatten((x, args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._check_inputs(tensors, weights)
        plain = [leaf for leaf in tensors if not isinstance(leaf, ShardedTensor)]
        shared, token = fan_out(self.ctx.comm, *plain)
        handles: dict[str, torch.Tensor] = {}
        if weights:
            handles, tied = self._shared.handles(self.ctx.comm, weights)
            token = token + tied
        rest = iter(shared)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, ShardedTensor):
                if not isinstance(x, ShardedTensor) or leaf.sharding.shape != x.sharding.shape:
                    raise LayoutError(
                        f"an argument is sharded, {leaf.sharding}, and the image is not: "
                        f"{tuple(x.shape)}"
                        if not isinstance(x, ShardedTensor)
                        else f"an argument of {leaf.sharding.shape} px goes with an image of "
                        f"{x.sharding.shape} px"
                    )
                leaf = realign(leaf, x.sharding)
                fetched: Any
                if torch.is_grad_enabled() and leaf.requires_grad:
                    fetched, tied = fetch_tied(leaf, schedule.fetched)
                    token = token + tied
                else:
                    fetched = begin_boxes(leaf, schedule.fetched)
                leaves[place] = FetchedBoxes(
                    leaf.to_local(), leaf.box, fetched, schedule.fetched[self.ctx.rank]
                )
            elif isinstance(leaf, torch.Tensor):
                leaves[place] = next(rest)
        image, args, kwargs = tree_unflatten(leaves, structure)
        if isinstance(image, torch.Tensor):
            image = WholeImage(image)
        return handles, image, args, kwargs, token

    def _call(self, run: _Run, tiles: tuple[Tile, ...]) -> Callable[..., torch.Tensor]:
        """The network for a batch of tiles, with the weights' handles in place of the weights."""
        network = self.processor
        if run.seed is None and run.statistics is None and not run.handles:
            return network
        seed = None if run.seed is None else stream_seed(run.seed, _number(tiles[0]))
        pixels = sum(tile.window.size for tile in tiles)

        def call(*inputs: Any, **named: Any) -> torch.Tensor:
            assert isinstance(network, nn.Module)
            tensors, statistics = run.handles, run.statistics
            buffers = {} if statistics is None else statistics.fresh()
            with drawing_from(seed, self.ctx.device):
                output = functional_call(network, {**tensors, **buffers}, inputs, named)
            if statistics is not None:
                statistics.add(tiles, buffers, pixels)
            return output

        return call

    def _recomputes(
        self,
        run: _Run,
        schedule: Schedule,
        image: Windows,
        spec: TensorSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:
        """Whether the backward pass computes activations anew, batch by batch."""
        mode = self.options.checkpoint_batches
        if mode != "auto":
            return mode == "always"
        if self.recompute is not None and not self.measure:
            return self.recompute
        if not schedule.batches or torch._C._functorch.peek_interpreter_stack() is not None:
            # The transforms of torch.func forbid the hooks by which activations are counted.
            return bool(self.recompute)
        key = (spec, schedule.batches, self.training, tuple(run.handles))
        found = self._activations.get(key)
        if found is None:
            found = self._activations[key] = self._measure(run, schedule, image, spec, args, kwargs)
        if self.measure:
            self.activations = found if self.activations is None else self.activations + found
        if self.recompute is not None:
            return self.recompute
        if found.all <= found.batch:
            return False
        budget = self.options.memory
        return found.all > (SHARE * memory_left(self.ctx.device) if budget is None else budget)

    def _measure(
        self,
        run: _Run,
        schedule: Schedule,
        image: Windows,
        spec: TensorSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Activations:
        """What is kept for the backward pass, from one more call on the largest batch."""
        sizes = [sum(tile.window.size for tile in batch) for batch in schedule.batches]
        batch = schedule.batches[sizes.index(max(sizes))]
        statistics, run.statistics = run.statistics, None
        try:
            stacked, cut_args, cut_kwargs = _inputs(batch, image, spec, args, kwargs)
            one = activation_bytes(
                self._call(run, batch),
                run.handles.values(),
                stacked,
                *cut_args,
                **cut_kwargs,
            )
        finally:
            run.statistics = statistics
        windows = spec.shape[0] * spec.shape[1] * sum(sizes) * spec.dtype.itemsize
        return Activations(one, one * sum(sizes) // max(sizes), windows)

    def _run(
        self,
        run: _Run,
        batch: tuple[Tile, ...],
        image: Windows,
        spec: TensorSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Iterator[tuple[torch.Tensor, Box]]:
        """Run the network on one batch of tiles of one shape; gives their cores."""
        size, token = spec.shape[0], run.token
        stacked, cut_args, cut_kwargs = _inputs(batch, image, spec, args, kwargs)
        call = self._call(run, batch)
        if run.recompute:
            output = checkpoint(
                call,
                stacked,
                *cut_args,
                use_reentrant=False,
                preserve_rng_state=self.checkpoint_preserve_rng_state,
                **cut_kwargs,
            )
        else:
            output = call(stacked, *cut_args, **cut_kwargs)
        if not isinstance(output, torch.Tensor):
            raise ValueError(
                f"the network gives a {type(output).__name__}; on tiles it must give one image"
            )
        if output.shape[:1] + output.shape[2:] != stacked.shape[:1] + stacked.shape[2:]:
            raise ValueError(
                f"the network turned tiles of shape {tuple(stacked.shape)} into "
                f"{tuple(output.shape)}; on tiles it must keep the batch and the spatial shape"
            )
        if token.requires_grad and not output.requires_grad:
            raise RuntimeError(
                "a gradient was asked for, and the network's output has none: it would be lost. "
                "Call it under torch.no_grad() if that is what you want"
            )
        if output.requires_grad and not isinstance(self.processor, nn.Module):
            _refuse_weights_of_a_function(output, stacked, token)
        if not token.requires_grad:
            # What a network that differentiates inside has left behind.
            output = output.detach()
        for number, tile in enumerate(batch):
            own = output[number * size : (number + 1) * size]
            yield crop(own, tile.core, tile.window), tile.core

    def _check_inputs(
        self, tensors: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> None:
        needed = torch.is_grad_enabled()
        self.first_use.same(
            "which arguments and weights of the network need a gradient",
            (tuple(needed and t.requires_grad for t in tensors), tuple(weights)),
            "They must be the same on every rank",
        )
        if self.ctx.debug and not self.ctx.comm.alone:
            check_values(self.ctx, "the network's arguments", *tensors)
            check_values(self.ctx, "the network's weights", *self.parameters(), *self.buffers())

    def _result_spec(
        self,
        spec: TensorSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mine: torch.Tensor | None,
    ) -> TensorSpec:
        """Channels and type of the result, which a rank without a tile learns from the others."""
        device = self.ctx.device.type
        key: Hashable = (
            spec,
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
            self.training,
            tuple(
                str(v.dtype) if isinstance(v, torch.Tensor) else type(v).__name__
                for v in (*args, *kwargs.values())
            ),
        )
        told = self.first_use.facts(
            "channels and type of the network's output",
            key,
            None if mine is None else (int(mine.shape[1]), mine.dtype),
        )
        kinds = {kind for kind in told if kind is not None}
        if len(kinds) != 1:
            raise DisagreementError(
                f"the network gives different outputs on different ranks: {told}"
            )
        channels, dtype = kinds.pop()
        return TensorSpec((spec.shape[0], channels, *spec.shape[2:]), dtype)

    def _spread(
        self,
        pieces: Sequence[torch.Tensor],
        schedule: Schedule,
        result: TensorSpec,
        token: torch.Tensor,
    ) -> torch.Tensor:
        # The token keeps a rank without a tile in step with the others in a backward pass.
        whole = result.empty(self.ctx.device).zero_() + token.to(result.dtype)
        for piece, box in zip(pieces, schedule.layout[self.ctx.rank], strict=True):
            crop(whole, box).copy_(piece)
        return whole

    # -- the tiles -------------------------------------------------------------------------------

    def schedule(
        self, spatial: tuple[int, ...], sharding: Sharding | None = None, singly: bool = False
    ) -> Schedule:
        """The tiles of an image of the given shape and layout, and who computes which.

        Parameters
        ----------
        spatial
            Spatial shape of the image in pixels.
        sharding
            Where it lies; None where every rank holds it.
        singly
            Whether the network sees one tile at a time, whatever the options say.
        """
        key = (spatial, None if sharding is None else sharding.partition, singly)
        found = self._schedules.get(key)
        if found is None:
            found = self._schedules[key] = Schedule.make(
                replace(self.options, max_batch_size=1) if singly else self.options,
                spatial,
                self.stride,
                ranks=self.ctx.world_size,
                rank=self.ctx.rank,
                device=self.ctx.device.type,
                partition=None if sharding is None else sharding.partition,
            )
        return found

    def describe(
        self, spatial: Sequence[int] | None = None, sharding: Sharding | None = None
    ) -> str:
        """How the work is laid out: tiles, halo, work multiplier W, who has what, values sent.

        Parameters
        ----------
        spatial
            Spatial shape of an image in pixels; by default that of the last call.
        sharding
            Where the image lies (``x.sharding``); None where every rank holds it.
        """
        if spatial is None and sharding is not None:
            spatial = sharding.shape
        if spatial is None:
            if not self._schedules:
                return (
                    f"network on tiles of at most {self.options.patch_size} px, halo "
                    f"{self.options.overlap} px, stride {self.stride} px; call it, or give "
                    "describe() a spatial shape, to see the tiles of an image"
                )
            return next(reversed(self._schedules.values())).describe()
        return self.schedule(tuple(spatial), sharding).describe()

    def extra_repr(self) -> str:
        """What ``repr`` shows of the block."""
        return self.describe()


def _inputs(
    batch: tuple[Tile, ...],
    image: Windows,
    spec: TensorSpec,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[torch.Tensor, list[Any], dict[str, Any]]:
    """What the network gets for a batch of tiles: their windows, and its other arguments."""
    windows = [tile.window for tile in batch]
    # A copy also of a single window: a network that works in place must not change the image.
    stacked = torch.cat([image.view(window) for window in windows])
    cut_args = [cut_argument(value, spec.shape, windows) for value in args]
    return stacked, cut_args, {n: cut_argument(v, spec.shape, windows) for n, v in kwargs.items()}


def _number(tile: Tile) -> int:
    """A number of a tile that no other tile of the image has."""
    number = 0
    for start in tile.core.start:
        number = number * 2**20 + start
    return number


def _refuse_weights_of_a_function(
    output: torch.Tensor, image: torch.Tensor, token: torch.Tensor
) -> None:
    """Raise if a function has weights that it closes over: their gradients would not be summed."""
    seen, ahead = {token.grad_fn}, [output.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not image:
            raise RuntimeError(
                "the function's output needs a gradient of tensors that are not its arguments, and "
                "it would be lost. Make it an nn.Module that has them as parameters, or call it "
                "under torch.no_grad()"
            )
        ahead += [before for before, _ in node.next_functions]
