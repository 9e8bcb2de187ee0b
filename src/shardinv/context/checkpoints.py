"""The context's verbs for checkpoints: save, load, find the newest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from shardinv.checkpoint import Loaded, Wanted, load, newest, save
from shardinv.context.images import Mesh
from shardinv.exchange import Communicator
from shardinv.tensor import ShardedTensor, Sharding


class Checkpoints:
    """What a :class:`~shardinv.DistributedContext` does with checkpoints."""

    comm: Communicator
    sharding: Callable[..., Sharding]

    def save(
        self, folder: Path | str, x: Any = None, state: Any = None, *, keep: int | None = 2
    ) -> Path:
        """Write what a run needs to go on: the iterate, and whatever else its loop carries.

        Every rank must call it, and every rank must be able to write to the folder. A rank writes
        its box of a sharded image, and no rank ever holds the whole. A plain tensor, the same on
        every rank, is written by one. The checkpoint gets its name when all of it is on the disk:
        a run that is killed in between still has the one before.

        Parameters
        ----------
        folder
            Where checkpoints are kept, of this run alone. Each is a folder inside, with a number
            that grows.
        x
            The iterate, sharded or plain.
        state
            Anything else: tensors, numbers, strings, None, lists, tuples and dictionaries of them,
            and what has a ``state_dict()`` (modules, optimizers, of which the state is saved).
            Numbers and strings must be the same on every rank.
        keep
            How many checkpoints stay, this one included; None keeps all.

        Returns
        -------
        Path
            The checkpoint.

        Raises
        ------
        DisagreementError
            If ranks save different things.
        TypeError
            If there is something that can't be saved.
        CheckpointError
            If a rank can't write.

        Notes
        -----
        Tensors are written through ``torch.distributed.checkpoint``, everything else as JSON, and
        the states of torch's random generators, of every rank, beside them. The messages that
        agree on who writes what are torch's own, small, and not in the ledger.

        Examples
        --------
        >>> import tempfile
        >>> from shardinv import DistributedContext
        >>> folder = tempfile.mkdtemp()
        >>> with DistributedContext() as ctx:
        ...     x = ctx.ones((1, 1, 8, 6))
        ...     _ = ctx.save(folder, x=x, state={"iteration": 3})
        ...     x, state = ctx.load(folder)
        ...     print(tuple(x.shape), state)
        (1, 1, 8, 6) {'iteration': 3}
        """
        return save(self.comm, Path(folder), x, state, keep)

    def load(
        self,
        folder: Path | str,
        *,
        like: torch.Tensor | None = None,
        mesh: Mesh = None,
        layout: Literal["replicated", "sharded"] | None = None,
        random: bool = True,
    ) -> Loaded:
        """Read a checkpoint, with the same number of ranks as wrote it or another.

        Every rank must call it. A rank reads its box of a sharded image only.

        Parameters
        ----------
        folder
            A checkpoint, or a folder of them, of which the newest whole one is read.
        like
            Lay the iterate out as this tensor, plain or sharded, of the same shape.
        mesh
            Shard on this mesh (as for :meth:`sharding`). Default: the boxes that were saved where
            there are as many ranks now, else chosen.
        layout
            ``"replicated"`` or ``"sharded"``. Default: as it was saved. Asking for one applies to
            the images ``(B, C, *spatial)`` in ``x``, to the tensors of the state with the same
            shape, and, for ``"replicated"``, to all that was sharded.
        random
            Whether to set torch's random generators as they were. With another number of ranks,
            those that have no counterpart keep theirs.

        Returns
        -------
        x, state
            What was saved, on the context's device.

        Raises
        ------
        CheckpointError
            If there is no checkpoint, or it is not whole, has another format, or no image of the
            shape of ``like``.
        """
        if layout not in (None, "replicated", "sharded"):
            raise ValueError(f"layout must be 'replicated', 'sharded' or None, got {layout!r}")
        implied = _implied(like, mesh)
        if layout is not None and implied is not None and layout != implied:
            given = "mesh" if mesh is not None else "like"
            raise ValueError(f"layout={layout!r} was asked for, but {given} is for a {implied} one")

        def sharding_of(spatial: Sequence[int]) -> Sharding:
            return self.sharding(spatial, mesh)

        wanted = Wanted(layout or implied, like, sharding_of, mesh is not None)
        return load(self.comm, Path(folder), wanted, random)

    def latest(self, folder: Path | str) -> Path | None:
        """The newest checkpoint of a folder that is whole, or None. Every rank must call it."""
        return newest(self.comm, Path(folder))


def _implied(like: torch.Tensor | None, mesh: Mesh) -> Literal["replicated", "sharded"] | None:
    if isinstance(like, ShardedTensor) or mesh is not None:
        return "sharded"
    return "replicated" if like is not None else None
