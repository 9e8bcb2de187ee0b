"""How an image lies on the ranks: the box of every rank, known to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardinv.exchange import Communicator
from shardinv.geometry import Box, Layout, Partition

CROPS_KEPT = 64


@dataclass(frozen=True, eq=False)
class Sharding:
    """The boxes of all ranks over the spatial axes of an image.

    Two are equal when their ranks are the same group and their boxes are the same, whatever mesh
    they were cut by.

    Parameters
    ----------
    comm
        The group.
    partition
        One box for each rank, some perhaps empty.
    mesh
        Number of parts along each spatial axis, for descriptions and for DTensor.
    order
        ``order[cell]`` is the rank of each cell of the mesh, row-major; None where they are in
        order.
    derived
        Whether the boxes follow from others by an operation (a crop, a convolution) instead of
        having been chosen. Pointwise operations may re-align such a tensor, which moves a few rows;
        they refuse to re-align a chosen one, which may move all.

    Raises
    ------
    ValueError
        If there is not one box for each rank.
    """

    comm: Communicator
    partition: Partition
    mesh: tuple[int, ...]
    order: tuple[int, ...] | None = None
    derived: bool = field(default=False)

    def __post_init__(self) -> None:
        if self.partition.ranks != self.comm.size:
            raise ValueError(f"{self.partition.ranks} boxes are given for {self.comm.size} ranks")

    @property
    def shape(self) -> tuple[int, ...]:
        """Spatial shape of the whole image."""
        return self.partition.shape

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.partition.shape)

    @property
    def box(self) -> Box:
        """This rank's box."""
        return self.partition.boxes[self.comm.rank]

    @cached_property
    def layout(self) -> Layout:
        """The boxes as :func:`shardinv.geometry.plan_transfers` takes them."""
        return tuple((box,) for box in self.partition.boxes)

    @cached_property
    def everywhere(self) -> Layout:
        """The layout in which every rank wants the whole image."""
        return ((Box.whole(self.shape),),) * self.comm.size

    @cached_property
    def _crops(self) -> dict[Box, Sharding]:
        """What :meth:`crop` has given before: a solver takes the same few crops at every step."""
        return {}

    def crop(self, region: Box) -> Sharding:
        """What is left of every rank's box in a region, whose first pixel becomes 0."""
        found = self._crops.get(region)
        if found is None:
            offset = tuple(-a for a in region.start)
            boxes = [(box & region).shift(offset) for box in self.partition.boxes]
            if len(self._crops) >= CROPS_KEPT:  # a window that slides over the image
                self._crops.clear()
            found = self._crops[region] = self.follow(region.shape, boxes)
        return found

    def follow(self, shape: Sequence[int], boxes: Sequence[Box]) -> Sharding:
        """The sharding of an operation's result, whose boxes follow from these."""
        partition = Partition(tuple(shape), tuple(boxes))
        return Sharding(self.comm, partition, self.mesh, self.order, derived=True)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Sharding)
            and self.comm is other.comm
            and self.partition == other.partition
        )

    def __hash__(self) -> int:
        return hash(self.partition)

    def __str__(self) -> str:
        mesh = " × ".join(str(m) for m in self.mesh)
        shape = " × ".join(str(n) for n in self.shape)
        boxes = ", ".join(str(box) for box in self.partition.boxes[:4])
        more = f", … {self.partition.ranks} in all" if self.partition.ranks > 4 else ""
        return f"{shape} px on a mesh of {mesh} ranks: {boxes}{more}"
