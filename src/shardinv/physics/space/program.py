"""Running chains of local operators on a sharded image: one exchange in for all, one out.

``branch`` is one operator's chain with what this rank holds of it; ``routes`` are the boxes and
exchanges that follow from how an image lies. The blocks that solvers see are in ``linear`` and
``stack``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn

from shardinv.exchange import Communicator, TensorSpec, fan_out, fetch
from shardinv.geometry import Partition
from shardinv.physics.space.exchange_plan import HaloPlan
from shardinv.physics.space.local import Chain
from shardinv.physics.summing import add_up
from shardinv.tensor import LayoutError, ShardedTensor, Sharding, realign

Kernels = dict[str, torch.Tensor]


class Branch(nn.Module):
    """One operator: its chain, and of its maps what this rank needs.

    Parameters
    ----------
    chain
        The stages.

    Notes
    -----
    Maps are cut when the branch first meets an image, and held for that layout alone from then on:
    no rank keeps them whole.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.stages = nn.ModuleList(chain.stages)
        self.cut_for: Sharding | None = None

    @property
    def chain(self) -> Chain:
        """The stages as they are now."""
        return Chain(tuple(self.stages))  # type: ignore[arg-type]

    def settle(self, sharding: Sharding) -> tuple[Partition, ...]:
        """The boxes of the image, between the stages and of the output; cuts maps to this rank's.

        Raises
        ------
        LayoutError
            If the maps were cut for another layout.
        """
        partitions = self.chain.partitions(sharding.partition)
        if self.cut_for is not None and self.cut_for != sharding:
            raise LayoutError(
                f"this operator's masks are cut for images {self.cut_for}; this one is {sharding}. "
                "Shard images as the first one was, or distribute the operator anew"
            )
        if self.cut_for is None and any(stage.has_maps for stage in self.chain.stages):
            rank = sharding.comm.rank
            self.stages = nn.ModuleList(
                stage.restrict(output.boxes[rank], image.shape)
                for stage, image, output in zip(
                    self.chain.stages, partitions[:-1], partitions[1:], strict=True
                )
            )
            self.cut_for = sharding
        return partitions

    def update(self, values: dict[str, Any]) -> bool:
        """Update parameters by DeepInverse's names; says whether any was known."""
        stages = [stage.update(**values) for stage in self.chain.stages]
        changed = any(new is not old for new, old in zip(stages, self.stages, strict=True))
        if changed:
            for number, (new, old) in enumerate(zip(stages, self.stages, strict=True)):
                if new is not old and new.has_maps and self.cut_for is not None:
                    # The new map is of the whole image, those of other stages are cut already.
                    partitions = self.chain.partitions(self.cut_for.partition)
                    box = partitions[number + 1].boxes[self.cut_for.comm.rank]
                    stages[number] = new.restrict(box, partitions[number].shape)
            self.stages = nn.ModuleList(stages)
        return changed


@dataclass(frozen=True)
class Route:
    """What follows for one branch from how an image lies.

    Parameters
    ----------
    shardings
        Of the image, between the stages, and of the output.
    halos
        The exchange before each stage but the first, which all branches share.
    """

    shardings: tuple[Sharding, ...]
    halos: tuple[HaloPlan, ...]


@dataclass(frozen=True)
class Routes:
    """The routes of all branches, and the exchange before their first stages."""

    first: HaloPlan
    branches: tuple[Route, ...]

    @property
    def outputs(self) -> tuple[Sharding, ...]:
        """How the measurements lie."""
        return tuple(route.shardings[-1] for route in self.branches)


class LocalProgram(nn.Module):
    """Chains of local operators that are applied to one image.

    Parameters
    ----------
    comm
        The ranks.
    branches
        The chains.
    """

    def __init__(self, comm: Communicator, branches: Sequence[Branch]) -> None:
        super().__init__()
        self.comm = comm
        self.branches = nn.ModuleList(branches)
        self._routes: dict[Sharding, Routes] = {}
        self._sources: dict[tuple[Sharding, ...], Sharding] = {}
        self._latest: dict[tuple[int, ...], Sharding] = {}

    # -- layouts ---------------------------------------------------------------------------------

    def routes(self, sharding: Sharding) -> Routes:
        """The boxes and exchanges for images that lie like this; worked out once."""
        found = self._routes.get(sharding)
        if found is not None:
            return found
        routes, users = [], []
        for branch in self._branches():
            partitions = branch.settle(sharding)
            stages = branch.chain.stages
            shardings = [sharding]
            for before, after in pairwise(partitions):
                last = shardings[-1]
                shardings.append(last if after == before else last.follow(after.shape, after.boxes))
            halos = tuple(
                HaloPlan.of(partitions[number], [(stages[number], partitions[number + 1])])
                for number in range(1, len(stages))
            )
            routes.append(Route(tuple(shardings), halos))
            users.append((stages[0], partitions[1]))
        found = Routes(HaloPlan.of(sharding.partition, users), tuple(routes))
        self._routes[sharding] = found
        self._sources[found.outputs] = sharding
        return found

    def remember(self, sharding: Sharding) -> None:
        """Note that an image lay like this: others of its shape are taken to."""
        self._latest.pop(sharding.shape, None)
        self._latest[sharding.shape] = sharding

    @property
    def newest(self) -> Sharding | None:
        """How the last image lay."""
        return next(reversed(self._latest.values()), None)

    def latest(self, spatial: Sequence[int]) -> Sharding | None:
        """How the last image of a spatial shape lay."""
        return self._latest.get(tuple(spatial))

    def image_shape(self, output: Sequence[int]) -> tuple[int, ...]:
        """Spatial shape of the image that the first branch's output came from.

        Where several fit it is that of the last image seen, or else the usual one.
        """
        chain = self._branches()[0].chain
        for spatial in reversed(self._latest):
            try:
                if chain.output_shape(spatial) == tuple(output):
                    return spatial
            except ValueError:
                continue
        return chain.input_shape(output)

    def image_of(self, measurements: Sequence[ShardedTensor]) -> Sharding:
        """How the image lies that goes with sharded measurements."""
        given = tuple(y.sharding for y in measurements)
        known = self._sources.get(given)
        if known is not None:
            return known
        spatial = self.image_shape(given[0].shape)
        latest = self.latest(spatial)
        if latest is not None:
            return latest
        chain = self._branches()[0].chain
        partition = chain.input_partition(given[0].partition, spatial)
        return given[0].follow(partition.shape, partition.boxes)

    def forget(self) -> None:
        """Work out all routes anew, after an operator has changed."""
        self._routes.clear()
        self._sources.clear()

    def _branches(self) -> list[Branch]:
        return list(self.branches)  # type: ignore[arg-type]

    # -- work ------------------------------------------------------------------------------------

    def evaluate(self, x: ShardedTensor) -> list[ShardedTensor]:
        """Every branch's output, sharded as the image: one exchange for all first stages."""
        routes, values = self._enter(x)
        return [
            self._forward(branch, route, own, values, routes.first)
            for branch, route, own in zip(
                self._branches(), routes.branches, self.kernels(), strict=True
            )
        ]

    def transpose(
        self, measurements: Sequence[ShardedTensor], sharding: Sharding, together: bool = True
    ) -> list[ShardedTensor]:
        """The sum of the branches' adjoints: one exchange for all first stages.

        Parameters
        ----------
        measurements
            One for each branch.
        sharding
            How the image shall lie.
        together
            Whether to add up the branches' images, or give one for each.
        """
        routes = self.routes(sharding)
        self.remember(sharding)
        parts = (
            self._backward(branch, route, own, y, routes.first)
            for branch, route, own, y in zip(
                self._branches(), routes.branches, self.kernels(), measurements, strict=True
            )
        )
        windows = [_sum(parts)] if together else list(parts)
        return [
            ShardedTensor.wrap(self._return(values, routes.first), sharding) for values in windows
        ]

    def normal(
        self, x: ShardedTensor, between: Callable[[int, ShardedTensor], ShardedTensor]
    ) -> ShardedTensor:
        r"""The sum :math:`\sum_i A_i^\top g_i(A_i x)`: one exchange out and one back.

        One branch's output is at hand at a time, where :meth:`evaluate` has all of them at once.

        Parameters
        ----------
        x
            The image.
        between
            ``between(index, y)`` gives :math:`g_i` of a branch's output, lying as it does.
        """
        routes, values = self._enter(x)

        def part(index: int, branch: Branch, route: Route, own: list[Kernels]) -> torch.Tensor:
            y = between(index, self._forward(branch, route, own, values, routes.first))
            return self._backward(branch, route, own, y, routes.first)

        total = _sum(
            part(index, branch, route, own)
            for index, (branch, route, own) in enumerate(
                zip(self._branches(), routes.branches, self.kernels(), strict=True)
            )
        )
        return ShardedTensor.wrap(self._return(total, routes.first), x.sharding)

    def _enter(self, x: ShardedTensor) -> tuple[Routes, torch.Tensor]:
        """The routes of an image, and its window on this rank."""
        check_spatial(x, "the image")
        routes = self.routes(x.sharding)
        self.remember(x.sharding)
        return routes, self._fetch(x.to_local(), routes.first, x.sharding)

    def _forward(
        self,
        branch: Branch,
        route: Route,
        kernels: list[Kernels],
        values: torch.Tensor,
        first: HaloPlan,
    ) -> ShardedTensor:
        """A branch's output, from the image's window."""
        rank = self.comm.rank
        window = first.windows[rank]
        for number, stage in enumerate(branch.chain.stages):
            before, after = route.shardings[number], route.shardings[number + 1]
            if number:
                halo = route.halos[number - 1]
                values = self._fetch(values, halo, before)
                window = halo.windows[rank]
            values = stage.evaluate(values, window, after.box, before.shape, kernels[number])
        return ShardedTensor.wrap(values, route.shardings[-1])

    def _backward(
        self,
        branch: Branch,
        route: Route,
        kernels: list[Kernels],
        y: ShardedTensor,
        first: HaloPlan,
    ) -> torch.Tensor:
        """What a branch's measurement gives to the image's window."""
        check_spatial(y, "a measurement")
        values = _placed(y, route.shardings[-1]).to_local()
        stages = branch.chain.stages
        for number in reversed(range(len(stages))):
            before, after = route.shardings[number], route.shardings[number + 1]
            halo = route.halos[number - 1] if number else first
            window = halo.windows[self.comm.rank]
            values = stages[number].transpose(
                values, after.box, window, before.shape, kernels[number]
            )
            if number:
                values = self._return(values, halo)
        return values

    def _fetch(self, local: torch.Tensor, halo: HaloPlan, sharding: Sharding) -> torch.Tensor:
        if halo.plan is None:
            return local
        spec = TensorSpec(tuple(local.shape[: local.ndim - sharding.ndim]), local.dtype)
        (values,), _ = fetch(self.comm, [local], halo.plan, spec, self._token(), "halo")
        return values

    def _return(self, values: torch.Tensor, halo: HaloPlan) -> torch.Tensor:
        if halo.plan is None:
            return values
        ndim = halo.windows[0].ndim
        spec = TensorSpec(tuple(values.shape[: values.ndim - ndim]), values.dtype)
        (local,), _ = fetch(self.comm, [values], halo.plan.reversed, spec, self._token(), "halo")
        return local

    def _token(self) -> torch.Tensor:
        # Every rank has a local part, if of no pixel: the parts themselves keep the ranks in step.
        return torch.zeros((), device=self.comm.device)

    def kernels(self) -> list[list[Kernels]]:
        """Every branch's and stage's kernels, such that gradients are summed over the ranks."""
        own = [[dict(stage.kernels) for stage in b.chain.stages] for b in self._branches()]
        places = [(kernels, name) for stages in own for kernels in stages for name in kernels]
        if not places:
            return own
        shared, _ = fan_out(self.comm, *(kernels[name] for kernels, name in places))
        for (kernels, name), tensor in zip(places, shared, strict=True):
            kernels[name] = tensor
        return own

    # -- predictions -----------------------------------------------------------------------------

    def bytes_per_call(
        self, sharding: Sharding, batch: int, channels: int, dtype: torch.dtype, adjoint: bool
    ) -> tuple[int, ...]:
        """Bytes that each rank sends in one call."""
        routes = self.routes(sharding)
        totals = []
        for rank in range(self.comm.size):
            pixels = channels * routes.first.sent(rank, adjoint)
            for branch, route in zip(self._branches(), routes.branches, strict=True):
                width = channels
                for number, stage in enumerate(branch.chain.stages):
                    if number:
                        pixels += width * route.halos[number - 1].sent(rank, adjoint)
                    width = stage.output_channels(width)
            totals.append(batch * pixels * dtype.itemsize)
        return tuple(totals)

    def describe(
        self,
        names: Sequence[str],
        sharding: Sharding | None,
        batch: int,
        channels: int,
        dtype: torch.dtype,
    ) -> str:
        """How the work is laid out, for images that lie like this."""
        lines = [f"by space on {self.comm.size} ranks: {', '.join(names)}"]
        if sharding is None:
            lines.append("  no image seen yet: boxes and halos follow from how it lies")
            return "\n".join(lines)
        routes = self.routes(sharding)
        pixels = prod(sharding.shape)
        fetched = sum(routes.first.sent(rank) for rank in range(self.comm.size))
        lines.append(f"  image {sharding}")
        lines.append(
            f"  imbalance {sharding.partition.imbalance:.3f} (1 is even); work multiplier W 1.000: "
            "nothing is computed twice"
        )
        lines.append(
            f"  first exchange: {_width(routes.first, sharding.partition)}, shared by "
            f"{len(names)}; {fetched} px fetched ({100 * fetched / max(pixels, 1):.2f} % of the "
            "image)"
        )
        for name, branch, route in zip(names, self._branches(), routes.branches, strict=True):
            stages = branch.chain.stages
            for number in range(1, len(stages)):
                width = _width(route.halos[number - 1], route.shardings[number].partition)
                lines.append(
                    f"  {name}, stage {number + 1} of {len(stages)} "
                    f"({type(stages[number]).__name__}): {width}"
                )
        there = self.bytes_per_call(sharding, batch, channels, dtype, adjoint=False)
        back = self.bytes_per_call(sharding, batch, channels, dtype, adjoint=True)
        for rank, box in enumerate(sharding.partition.boxes):
            lines.append(
                f"  rank {rank}: {box}, {box.size} px; sends {there[rank]} B in A, {back[rank]} B "
                "in A_adjoint"
            )
        kind = str(dtype).removeprefix("torch.")
        lines.append(f"  bytes are for {batch} x {channels} {kind} images")
        return "\n".join(lines)


def _sum(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    total, _ = add_up(parts)
    assert total is not None  # a program has a branch at least
    return total


def check_spatial(x: ShardedTensor, what: str) -> None:
    """Raise unless a sharded tensor is an image ``(B, C, *spatial)``.

    Raises
    ------
    LayoutError
        If it is folded, or has other axes.
    """
    if x.folded is not None or x.trailing or x.ndim != x.sharding.ndim + 2:
        raise LayoutError(
            f"{what} must be sharded as (B, C, *spatial), got shape {tuple(x.shape)} with "
            f"{x.sharding.ndim} spatial axes cut: view it so first"
        )


def _placed(y: ShardedTensor, sharding: Sharding) -> ShardedTensor:
    if y.sharding == sharding:
        return y
    if y.sharding.comm is not sharding.comm or y.sharding.shape != sharding.shape:
        raise LayoutError(
            f"a measurement lies as {y.sharding}, for this image it should lie as {sharding}"
        )
    return realign(y, sharding)


def _width(halo: HaloPlan, partition: Partition) -> str:
    if halo.plan is None:
        return "nothing to fetch"
    widths = halo.width(partition)
    return "halo " + " x ".join(f"{before}+{after}" for before, after in widths) + " px"
