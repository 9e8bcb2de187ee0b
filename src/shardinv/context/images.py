"""The context's verbs for images: from replicated to sharded and back, and made sharded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, product
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh

from shardinv.exchange import (
    Communicator,
    DisagreementError,
    FirstUse,
    TensorSpec,
    host_of_ranks,
    publish,
)
from shardinv.geometry import Box, Partition, choose_mesh, place_ranks
from shardinv.tensor import LayoutError, ShardedTensor, Sharding, gather, scatter

Mesh = int | Sequence[int] | DeviceMesh | None
"""How many parts each spatial axis is cut into; None chooses."""


class ImageLayouts:
    """What a :class:`~shardinv.DistributedContext` does with images ``(B, C, *spatial)``."""

    comm: Communicator
    device: torch.device

    def sharding(
        self, spatial: Sequence[int], mesh: Mesh = None, align: int | Sequence[int] = 1
    ) -> Sharding:
        """The boxes of all ranks for images of a spatial shape.

        Parameters
        ----------
        spatial
            Spatial shape in pixels.
        mesh
            Parts along each spatial axis, whose product is the number of ranks; one number cuts
            the first axis only. A ``DeviceMesh`` of as many axes, or fewer, says which rank gets
            which cell too. None chooses near-square boxes, whose borders are short. Ranks of one
            host get cells that lie together.
        align
            Boxes start at multiples of this: one number, or one for each axis.

        Raises
        ------
        ValueError
            If the mesh has not as many cells as there are ranks, or more axes than the image.
        """
        spatial = tuple(int(n) for n in spatial)
        parts, order = self._cells(spatial, mesh, host_of_ranks(self.comm))
        aligns = (align,) * len(spatial) if isinstance(align, int) else tuple(align)
        key = (spatial, parts, order, aligns)
        known: dict[object, Sharding] = self.__dict__.setdefault("_shardings", {})
        if key not in known:
            partition = Partition.split(spatial, parts, aligns, order)
            known[key] = Sharding(self.comm, partition, parts, order)
        return known[key]

    def _cells(
        self, spatial: tuple[int, ...], mesh: Mesh, hosts: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """The mesh, and the rank of each cell where they are not in order."""
        size = self.comm.size
        order: tuple[int, ...] | None = None
        if mesh is None:
            parts: tuple[int, ...] = choose_mesh(spatial, size, hosts=hosts)
        elif isinstance(mesh, DeviceMesh):
            parts = tuple(mesh.shape)
            peers = {self.comm.peer(rank): rank for rank in range(size)}
            ranks = [peers.get(int(rank)) for rank in mesh.mesh.flatten()]
            if None in ranks or len(set(ranks)) != size:
                raise ValueError(
                    f"the DeviceMesh has the ranks {mesh.mesh.flatten().tolist()}, the context has "
                    f"{sorted(peers)}"
                )
            order = tuple(rank for rank in ranks if rank is not None)
        else:
            parts = (mesh,) if isinstance(mesh, int) else tuple(mesh)
        if len(parts) > len(spatial):
            raise ValueError(
                f"the mesh {parts} has {len(parts)} axes, the image {spatial} has {len(spatial)}"
            )
        parts += (1,) * (len(spatial) - len(parts))
        if any(n < 1 for n in parts) or prod(parts) != size:
            raise ValueError(
                f"the mesh {parts} has {prod(parts)} cells, there are {size} ranks: give a mesh "
                "with a cell for each"
            )
        if order is None:
            order = place_ranks(parts, hosts, spatial)
        return parts, None if order == tuple(range(size)) else order

    def shard(
        self, x: torch.Tensor, mesh: Mesh = None, align: int | Sequence[int] = 1
    ) -> ShardedTensor:
        """Keep this rank's box of an image that every rank holds. No message.

        Parameters
        ----------
        x
            Image ``(B, C, *spatial)``, the same on every rank. A sharded one is returned as it is.
        mesh, align
            As for :meth:`sharding`.

        Raises
        ------
        DisagreementError
            If ranks hold images of different shapes or types.
        LayoutError
            If it is sharded already, in other boxes than asked for.
        """
        if isinstance(x, ShardedTensor):
            if mesh is not None or align != 1:
                asked = self.sharding(x.sharding.shape, mesh, align)
                if asked != x.sharding:
                    raise LayoutError(
                        f"the image is sharded already: {x.sharding}; asked for is {asked}. Use "
                        "shardinv.tensor.realign(x, ctx.sharding(...))"
                    )
            return x
        if x.ndim < 3:
            raise ValueError(f"an image (B, C, *spatial) is needed, got shape {tuple(x.shape)}")
        self._first_image.same(
            "shape, type, need of a gradient and cuts of an image to shard",
            (
                TensorSpec.of(x),
                bool(x.requires_grad and torch.is_grad_enabled()),
                _text(mesh, align),
            ),
            "They must be the same on every rank",
        )
        return scatter(x.to(self.device), self.sharding(x.shape[2:], mesh, align))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The whole image on every rank; one that is whole already is returned as it is."""
        return gather(x) if isinstance(x, ShardedTensor) else x

    def zeros(
        self,
        shape: Sequence[int],
        *,
        mesh: Mesh = None,
        align: int | Sequence[int] = 1,
        dtype: torch.dtype | None = None,
    ) -> ShardedTensor:
        """A sharded image of zeros, of which every rank makes its box only.

        Parameters
        ----------
        shape
            ``(B, C, *spatial)`` of the whole.
        mesh, align
            As for :meth:`sharding`.
        dtype
            Type; default: torch's.
        """
        return self.full(shape, 0.0, mesh=mesh, align=align, dtype=dtype)

    def ones(
        self,
        shape: Sequence[int],
        *,
        mesh: Mesh = None,
        align: int | Sequence[int] = 1,
        dtype: torch.dtype | None = None,
    ) -> ShardedTensor:
        """A sharded image of ones. Parameters as for :meth:`zeros`."""
        return self.full(shape, 1.0, mesh=mesh, align=align, dtype=dtype)

    def full(
        self,
        shape: Sequence[int],
        fill_value: float,
        *,
        mesh: Mesh = None,
        align: int | Sequence[int] = 1,
        dtype: torch.dtype | None = None,
    ) -> ShardedTensor:
        """A sharded image of one value. Parameters as for :meth:`zeros`."""
        dtype = dtype if dtype is not None else torch.get_default_dtype()

        def fill(box: Box) -> torch.Tensor:
            size = (*shape[:2], *box.shape)
            return torch.full(size, fill_value, dtype=dtype, device=self.device)

        return self.from_function(shape, fill, mesh=mesh, align=align)

    def from_function(
        self,
        shape: Sequence[int],
        function: Callable[[Box], torch.Tensor],
        *,
        mesh: Mesh = None,
        align: int | Sequence[int] = 1,
    ) -> ShardedTensor:
        """A sharded image whose boxes a function makes: no rank ever holds the whole.

        Parameters
        ----------
        shape
            ``(B, C, *spatial)`` of the whole.
        function
            ``function(box)`` returns the pixels ``(B, C, *box.shape)`` of a box of the image; it is
            called once on every rank. ``box.start`` and ``box.slices()`` say where it lies.
        mesh, align
            As for :meth:`sharding`.

        Raises
        ------
        ValueError
            If the function returns another shape.

        Examples
        --------
        >>> from shardinv import DistributedContext
        >>> with DistributedContext() as ctx:
        ...     x = ctx.from_function((1, 1, 8, 6), lambda box: torch.ones(1, 1, *box.shape))
        ...     print(float(x.sum()))
        48.0
        """
        shape = tuple(int(n) for n in shape)
        if len(shape) < 3:
            raise ValueError(f"an image (B, C, *spatial) is needed, got shape {shape}")
        sharding = self.sharding(shape[2:], mesh, align)
        local = function(sharding.box)
        expected = (*shape[:2], *sharding.box.shape)
        wrong = None
        if tuple(local.shape) != expected:
            wrong = (
                f"the function returned shape {tuple(local.shape)} for the box {sharding.box}, "
                f"expected {expected}"
            )
        self._first_image.same(
            "shape, type, need of a gradient and cuts of an image made box by box",
            (shape, str(local.dtype), bool(local.requires_grad), _text(mesh, align), bool(wrong)),
            wrong or "They must be the same on every rank, and the boxes as asked for",
        )
        if wrong:
            raise ValueError(wrong)
        return ShardedTensor(local.to(self.device), sharding)

    def from_local(self, local: torch.Tensor, mesh: Mesh = None) -> ShardedTensor:
        """A sharded image of the boxes that the ranks hold already. Sends shapes, no pixel.

        Parameters
        ----------
        local
            This rank's box, ``(B, C, *box.shape)``; of any size that fits with its neighbours'.
        mesh
            How the boxes lie, as for :meth:`sharding`; default: one after the other along the first
            spatial axis, in the order of the ranks.

        Raises
        ------
        DisagreementError
            If the boxes don't fit together, or have different types.
        """
        size = self.comm.size
        box_shape = tuple(local.shape[2:])
        if local.ndim < 3:
            raise ValueError(f"a box (B, C, *spatial) is needed, got shape {tuple(local.shape)}")
        one_host = (0,) * size  # the boxes lie as the caller says, wherever the ranks are
        parts, order = self._cells(box_shape, mesh if mesh is not None else size, one_host)
        told = publish(
            self.comm, "the boxes of an image", (TensorSpec.of(local), bool(local.requires_grad))
        )
        shapes = [spec.shape for spec, _ in told]
        kinds = {(spec.shape[:2], spec.dtype, grad) for spec, grad in told}
        held = ", ".join(f"rank {rank}: {spec}" for rank, (spec, _) in enumerate(told))
        if len(kinds) > 1 or len({len(shape) for shape in shapes}) > 1:
            raise DisagreementError(f"the boxes of an image have different kinds: {held}")
        cells = list(product(*(range(n) for n in parts)))
        ranks = order if order is not None else tuple(range(size))
        lengths: list[list[int]] = [[0] * n for n in parts]
        for cell, rank in zip(cells, ranks, strict=True):
            for axis, place in enumerate(cell):
                lengths[axis][place] = max(lengths[axis][place], shapes[rank][2 + axis])
        cuts = [[0, *accumulate(each)] for each in lengths]
        boxes: list[Box] = [Box.whole((0,) * len(parts))] * size
        for cell, rank in zip(cells, ranks, strict=True):
            start = tuple(cuts[axis][place] for axis, place in enumerate(cell))
            stop = tuple(cuts[axis][place + 1] for axis, place in enumerate(cell))
            boxes[rank] = Box(start, stop)
            if boxes[rank].shape != tuple(shapes[rank][2:]):
                raise DisagreementError(
                    f"the boxes of an image don't fit together on a mesh {parts}: rank {rank} has "
                    f"{shapes[rank]}, its neighbours leave {boxes[rank].shape} px ({held})"
                )
        partition = Partition(tuple(each[-1] for each in cuts), tuple(boxes))
        sharding = Sharding(self.comm, partition, parts, order)
        return ShardedTensor(local.to(self.device), sharding)

    @property
    def _first_image(self) -> FirstUse:
        known: FirstUse | None = self.__dict__.get("_first_image_use")
        if known is None or known.comm is not self.comm:
            known = self.__dict__["_first_image_use"] = FirstUse(
                self.comm, every_call=bool(self.__dict__.get("debug"))
            )
        return known


def _text(mesh: Mesh, align: int | Sequence[int]) -> str:
    cells = mesh.mesh.tolist() if isinstance(mesh, DeviceMesh) else mesh
    return f"mesh={cells}, align={align}"
