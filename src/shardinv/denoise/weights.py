"""A network's weights, handed to this rank's part of the work once for all calls of a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shardinv.exchange import Communicator, fan_out


class SharedWeights:
    """Handles of a network's weights whose partial gradients are summed over the ranks.

    An unrolled solver calls its network many times between two changes of the weights. All these
    calls use the same handles, so a backward pass sums the weights' gradients once, in one
    reduction, however often the network was used. The sum is part of the graph:
    ``torch.autograd.grad`` and derivatives of any order see it.

    The handles are made anew when a weight has been changed, in place or for another tensor. A copy
    of a block starts without any.
    """

    def __init__(self) -> None:
        self._made_for: tuple[tuple[int, int, int], ...] = ()
        self._sources: tuple[torch.Tensor, ...] = ()
        self._handles: dict[str, torch.Tensor] = {}
        self._token: torch.Tensor | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> SharedWeights:
        return SharedWeights()

    def handles(
        self, comm: Communicator, weights: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The handles, by name, and the token that ties a call to them.

        Parameters
        ----------
        comm
            The group.
        weights
            The weights that need a gradient, by name.
        """
        sources = tuple(weights.values())
        # An address as well as a version: assigning to `.data` leaves the version as it was.
        state = tuple((id(w), w._version, w.data_ptr()) for w in sources)
        if self._token is None or state != self._made_for or [*weights] != [*self._handles]:
            shared, token = fan_out(comm, *sources)
            self._handles, self._token = dict(zip(weights, shared, strict=True)), token
            # Kept, so that the identity of a tensor that is gone isn't taken for another's.
            self._made_for, self._sources = state, sources
        return self._handles, self._token
