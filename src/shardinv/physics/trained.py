"""Tensors of operators that need a gradient, such as the kernel of a blind problem.

An operator runs on the rank that owns it, so its owner alone would learn the gradient of a kernel.
Here such tensors are handed to the owners in a way that every rank gets the whole gradient. What
an operator does with them is its own affair.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shardinv.exchange import Communicator, FirstUse, TensorSpec, fan_out
from shardinv.physics.operators import OwnedOperators
from shardinv.physics.slots import Slot, trained_slots


class UnknownTensorError(ValueError):
    """An operator holds a tensor that needs a gradient, of which the other ranks don't know."""


class TrainedTensors:
    """Lends the tensors that need a gradient to this rank's operators, call by call.

    For a call, an operator has a *handle* in place of each such tensor. Backward, the handles'
    cotangents are summed over the ranks in one reduction, which is part of the graph: also
    ``torch.autograd.grad`` and derivatives of any order are the undistributed ones on every rank.
    All calls between two changes of the tensors use the same handles, so an unrolled solver sums
    them once.

    Parameters
    ----------
    comm
        The group.
    first_use
        Compares between the ranks which tensors need a gradient.
    operators
        This rank's operators.
    shared
        The parameters, and other tensors that need a gradient, of all operators of all ranks, where
        every rank was given them. Empty for operators made by a factory.
    alone
        Whether some rank's operators hold tensors that are that rank's alone.
    """

    def __init__(
        self,
        comm: Communicator,
        first_use: FirstUse,
        operators: OwnedOperators,
        shared: Sequence[torch.Tensor],
        alone: bool,
    ) -> None:
        self.comm, self.first_use = comm, first_use
        self._operators = operators
        self._shared = tuple(shared)
        # By the name of the option with which every rank was given it last.
        self._given: dict[str, torch.Tensor] = {}
        self._tokens: dict[str, torch.Tensor] = {}
        self._own = {id(t): t for t in self._held()} if alone else {}
        # Where some rank's result depends on a tensor of its own, all ranks' must need a gradient.
        self._anchor = torch.zeros((), device=comm.device).requires_grad_() if alone else None
        self._forget()

    def _forget(self) -> None:
        self._state: tuple[tuple[int, int, int], ...] | None = None
        self._lent_from: list[torch.Tensor] = []
        self._handles: dict[int, torch.Tensor] = {}
        self._token = torch.zeros((), device=self.comm.device)
        self._replaced: list[torch.Tensor] = []
        # What operators have worked out from handles, and keep.
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: the tensors, no graph."""
        left = ("_state", "_handles", "_token", "_made", "_tokens", "_lent_from", "_replaced")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tokens = {}
        # The copies have other identities than their originals.
        self._own = {id(tensor): tensor for tensor in self._own.values()}
        self._forget()

    @contextmanager
    def lent(self, options: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        """Within, this rank's operators hold handles.

        Parameters
        ----------
        options
            Keyword arguments for the operators. Tensors among them that need a gradient become
            handles as well; an operator may keep them.

        Yields
        ------
        dict
            The options to hand on.
        torch.Tensor
            The token to add to that of the call.

        Raises
        ------
        UnknownTensorError
            If an operator holds a tensor that needs a gradient, and the others were not told so.
        DisagreementError
            If another rank's options have other shapes, types, or needs of a gradient.
        """
        if self.comm.alone:
            yield dict(options), self._token
            return
        tensors = {n: t for n, t in options.items() if isinstance(t, torch.Tensor)}
        options, token = self._fan_out_options(options, tensors)
        handles = {id(options[name]): tensor for name, tensor in tensors.items()}
        if not torch.is_grad_enabled():
            yield options, token
            self._note(tensors, None)
            return
        # The call replaces what an option gave before; the graph behind that may be gone.
        self._replaced = [self._given.pop(n) for n in tensors if n in self._given]
        for name in tensors:
            self._tokens.pop(name, None)
        lent = self._lend()
        try:
            for other in (self._token, self._anchor, *self._tokens.values()):
                token = token if other is None else token + other
            yield options, token
        finally:
            for slot, source, handle in lent:
                if slot.get() is handle:
                    slot.put(source)
            kept = self._take_back(handles)
        self._note(tensors, token)
        self._made = kept

    def _fan_out_options(
        self, options: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, Any], torch.Tensor]:
        if not tensors:
            return dict(options), torch.zeros((), device=self.comm.device)
        grad = torch.is_grad_enabled()
        self.first_use.same(
            "the shapes and types of tensors given as options, and which need a gradient",
            tuple((n, TensorSpec.of(t), grad and t.requires_grad) for n, t in tensors.items()),
            "They must be the same on every rank",
        )
        local, token = fan_out(self.comm, *tensors.values())
        return {**options, **dict(zip(tensors, local, strict=True))}, token

    def _note(self, tensors: Mapping[str, torch.Tensor], token: torch.Tensor | None) -> None:
        """Remember which tensors operators may have kept, on every rank alike."""
        for name, tensor in tensors.items():
            self._given.pop(name, None)
            self._tokens.pop(name, None)
            if tensor.requires_grad:
                self._given[name] = tensor
                if token is not None:
                    # For what operators have worked out from the handle, and keep.
                    self._tokens[name] = token

    def _sources(self) -> list[torch.Tensor]:
        sources = {id(t): t for t in (*self._shared, *self._given.values()) if t.requires_grad}
        return list(sources.values())

    def _lend(self) -> list[tuple[Slot, torch.Tensor, torch.Tensor]]:
        sources = self._sources()
        self.first_use.same(
            "which tensors of operators need a gradient",
            tuple(TensorSpec.of(source) for source in sources),
            "They must be the same on every rank",
        )
        # An address as well as a version: assigning to `.data` leaves the version as it was.
        state = tuple((id(t), t._version, t.data_ptr()) for t in sources)
        if state != self._state:
            handles, self._token = fan_out(self.comm, *sources)
            self._handles = {id(t): h for t, h in zip(sources, handles, strict=True)}
            # Kept, so that the identity of a tensor that is gone isn't taken for another's.
            self._state, self._lent_from = state, sources
        lent = []
        for index, operator in self._operators.local_items():
            for slot, tensor in trained_slots(operator):
                handle = self._handles.get(id(tensor))
                if handle is not None:
                    lent.append((slot, tensor, handle))
                elif not self._known(tensor):
                    raise UnknownTensorError(
                        f"operator {index}, on rank {self.comm.rank}, holds a tensor of shape "
                        f"{tuple(tensor.shape)} that needs a gradient (in {slot.key!r}), of which "
                        "the other ranks do not know, so they would miss its gradient. Give it to "
                        "the distributed physics on every rank, as a keyword argument of the call "
                        "or by physics.update_parameters(...), or before distributing, to "
                        "operators given as a list"
                    )
        for slot, _, handle in lent:
            slot.put(handle)
        return lent

    def _known(self, tensor: torch.Tensor) -> bool:
        made = self._made.get(id(tensor))
        return (
            id(tensor) in self._own
            or any(tensor is before for before in self._replaced)
            or (made is not None and made() is tensor)
            or any(tensor is handle for handle in self._handles.values())
        )

    def _take_back(
        self, handles: Mapping[int, torch.Tensor]
    ) -> dict[int, weakref.ref[torch.Tensor]]:
        """Put options in the place of their handles; the other tensors that operators have kept."""
        made = {}
        for _, operator in self._operators.local_items():
            for slot, tensor in trained_slots(operator):
                source = handles.get(id(tensor))
                if source is not None:
                    slot.put(source)
                elif tensor.grad_fn is not None:
                    made[id(tensor)] = weakref.ref(tensor)
        return made

    def _held(self) -> list[torch.Tensor]:
        return [t for _, op in self._operators.local_items() for _, t in trained_slots(op)]
