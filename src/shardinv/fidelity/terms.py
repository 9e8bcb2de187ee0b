"""The terms of a fidelity, one an operator: a single one for all, a list, or a factory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from deepinv.optim.data_fidelity import DataFidelity, StackedPhysicsDataFidelity
from torch.func import functional_call

from shardinv.physics.operators import borrows

FidelityFactory: TypeAlias = Callable[..., DataFidelity]
FidelitySource: TypeAlias = DataFidelity | Sequence[DataFidelity] | FidelityFactory


class Terms:
    """Gives the fidelity term of each operator.

    Parameters
    ----------
    source
        A fidelity used for every operator, a ``StackedPhysicsDataFidelity`` or list with one for
        each, or a factory ``factory(index, device, factory_kwargs)`` called for the operators of
        this rank only.
    device
        Where terms belong.
    num_operators
        How many terms a factory makes; with a list, a check.
    factory_kwargs
        Handed to the factory as its third argument.
    shared
        Whether terms are those of several ranks.

    Raises
    ------
    TypeError
        If an entry is no ``deepinv.optim.DataFidelity``.
    ValueError
        If the number of terms is missing or wrong.
    """

    def __init__(
        self,
        source: FidelitySource,
        device: torch.device,
        num_operators: int | None = None,
        factory_kwargs: Mapping[str, Any] | None = None,
        shared: bool = True,
    ) -> None:
        self._shared = shared
        if isinstance(source, StackedPhysicsDataFidelity):
            source = list(source.data_fidelity_list)
        self.single: DataFidelity | None = None
        self._factory: FidelityFactory | None = None
        self._made: dict[int, DataFidelity] = {}
        self.count: int | None = num_operators
        if isinstance(source, DataFidelity):
            self.single = source.to(device)
        elif isinstance(source, Sequence):
            for index, term in enumerate(source):
                if not isinstance(term, DataFidelity):
                    raise TypeError(
                        f"fidelity {index} is a {type(term).__name__}, "
                        "a deepinv.optim.DataFidelity is needed"
                    )
                self._made[index] = term.to(device)
            if num_operators not in (None, len(source)):
                raise ValueError(f"num_operators={num_operators}, but {len(source)} are given")
            self.count = len(source)
        elif callable(source):
            if num_operators is None:
                raise ValueError("a factory of fidelities needs num_operators=")
            self._factory = source
        else:
            raise TypeError(
                f"a fidelity, a list of them or a factory is needed, got a {type(source).__name__}"
            )
        self._device = device
        self._factory_kwargs = factory_kwargs

    def __getitem__(self, index: int) -> DataFidelity:
        """The term of an operator, made at its first use by a factory."""
        if self.single is not None:
            return self.single
        if index not in self._made and self._factory is not None:
            term = self._factory(index, self._device, self._factory_kwargs)
            if not isinstance(term, DataFidelity):
                raise TypeError(
                    f"the factory made a {type(term).__name__} for operator {index}, "
                    "a deepinv.optim.DataFidelity is needed"
                )
            make = functools.partial(self._factory, index, self._device, self._factory_kwargs)
            if self._shared and borrows(term, make):
                raise ValueError(
                    f"the factory gives term {index} a tensor that needs a gradient and exists "
                    "outside the factory: other ranks would miss its gradient. Distribute a list "
                    "of fidelities"
                )
            self._made[index] = term.to(self._device)
        return self._made[index]

    def check_count(self, operators: int) -> None:
        """Raise unless there is a term for each operator."""
        if self.count is not None and self.count != operators:
            raise ValueError(
                f"there are {self.count} fidelity terms for a stack of {operators} operators"
            )

    @property
    def made_later(self) -> bool:
        """Whether a factory makes the terms, each on the rank of its operator."""
        return self._factory is not None

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and buffers that all ranks have: of terms that were not made by a factory."""
        terms = [] if self.made_later else self.modules()
        return [tensor for term in terms for tensor in (*term.parameters(), *term.buffers())]

    def weights(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained, of terms that all ranks have."""
        return [weight for _, weight in self._weights()]

    def _weights(self) -> list[tuple[tuple[DataFidelity, str], torch.nn.Parameter]]:
        terms = [] if self.made_later else self.modules()
        found = [((t, name), p) for t in terms for name, p in t.named_parameters()]
        return [(place, parameter) for place, parameter in found if parameter.requires_grad]

    def call(
        self,
        index: int,
        handles: Sequence[torch.Tensor],
        evaluate: Callable[..., torch.Tensor],
        *args: Any,
    ) -> torch.Tensor:
        """``evaluate(term, *args)`` for an operator's term, with these in place of its weights."""
        term = self[index]
        if not handles:
            return evaluate(term, *args)
        places = [place for place, _ in self._weights()]
        named = {
            f"term.{name}": handle
            for (owner, name), handle in zip(places, handles, strict=True)
            if owner is term
        }
        return functional_call(_Call(term), named, (evaluate, *args))

    def modules(self) -> list[DataFidelity]:
        """The terms at hand."""
        return [self.single] if self.single is not None else list(self._made.values())


class _Call(torch.nn.Module):
    """Calls any method of a term as a forward, so that its weights can be replaced for the call."""

    def __init__(self, term: DataFidelity) -> None:
        super().__init__()
        self.term = term

    def forward(self, evaluate: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
        return evaluate(self.term, *args)
