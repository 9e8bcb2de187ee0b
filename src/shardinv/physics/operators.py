"""Building the operators of a stack and dealing them to the ranks by cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepinv.physics import LinearPhysics, Physics, StackedPhysics

from shardinv.context import DistributedContext
from shardinv.exchange import TensorSpec, broadcast_tensors, publish
from shardinv.geometry import deal
from shardinv.physics.measurements import OwnedList, Ownership
from shardinv.physics.noise import Generators, seeds_of
from shardinv.physics.slots import origins, tensor_slots, trained_slots

OperatorFactory = Callable[..., Physics]


class OwnedOperators(OwnedList[Physics]):
    """The operators of a stack, each on the rank that owns it."""

    advice = "it was dealt to that rank when the stack was distributed"

    def __init__(self, entries: Mapping[int, Physics], ownership: Ownership) -> None:
        super().__init__(entries, ownership, "operator")


@dataclass(frozen=True)
class DealtOperators:
    """A stack's operators after the deal.

    Parameters
    ----------
    operators
        This rank's, with their indices.
    linear
        Whether all operators, on all ranks, are linear.
    costs
        The cost of each, by which they were dealt.
    generators
        Who draws noise from a random generator of its own.
    trained
        The parameters, and other tensors that need a gradient, of all operators, where every rank
        was given all of them.
    alone
        Whether some rank's operators hold tensors in need of a gradient that it alone has.
    """

    operators: OwnedOperators
    linear: bool
    costs: tuple[float, ...]
    generators: Generators
    trained: tuple[torch.Tensor, ...] = ()
    alone: bool = False


def deal_operators(
    source: StackedPhysics | Sequence[Physics] | OperatorFactory,
    ctx: DistributedContext,
    *,
    num_operators: int | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    costs: Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
) -> DealtOperators:
    """Deal operators to the ranks and put this rank's on its device.

    Parameters
    ----------
    source
        A stack, a list of operators, or a factory ``factory(index, device, factory_kwargs)`` that
        is called on the owner's rank only.
    ctx
        The ranks.
    num_operators
        How many a factory makes; with a stack or list, a check.
    factory_kwargs
        Handed to the factory as its third argument.
    costs
        Cost of each operator in any unit; by default the number of values in its parameters and
        buffers (kernels, masks, angles), or all alike for a factory.
    dtype
        Type to convert real floating parameters and buffers to; None leaves them.

    Raises
    ------
    ValueError
        If the number of operators is missing, wrong, or not the number of costs.
    TypeError
        If an entry is not a ``deepinv.physics.Physics``.

    Notes
    -----
    Tensors of the operators that need a gradient, such as a kernel that is trained, get rank 0's
    values where all ranks were given all operators. What a factory makes anew is its owner's, and
    so is its gradient; a tensor that it takes from outside would lose the other ranks' parts of its
    gradient, and raises.
    """
    given: list[Physics] | None = None
    if isinstance(source, StackedPhysics):
        given = list(source.physics_list)
    elif isinstance(source, Sequence):
        given = []
        for operator in source:
            given.extend(
                operator.physics_list if isinstance(operator, StackedPhysics) else [operator]
            )
    if given is not None:
        for index, operator in enumerate(given):
            if not isinstance(operator, Physics):
                raise TypeError(
                    f"operator {index} is a {type(operator).__name__}, "
                    "a deepinv.physics.Physics is needed"
                )
        if num_operators not in (None, len(given)):
            raise ValueError(f"num_operators={num_operators}, but {len(given)} operators are given")
    elif num_operators is None:
        raise ValueError("a factory of operators needs num_operators=")
    count = len(given) if given is not None else int(num_operators or 0)
    if count < 1:
        raise ValueError("at least one operator is needed, got none")
    if costs is None:
        costs = [1.0] * count if given is None else [_cost(operator) for operator in given]
    if len(costs) != count:
        raise ValueError(f"{len(costs)} costs are given for {count} operators")
    ownership = Ownership(deal(costs, ctx.world_size), ctx.rank)
    if given is not None:
        mine = {index: given[index] for index in ownership.mine}
    else:
        assert callable(source)
        mine = {}
        for index in ownership.mine:
            mine[index] = source(index, ctx.device, factory_kwargs)
            if not isinstance(mine[index], Physics):
                raise TypeError(
                    f"the factory made a {type(mine[index]).__name__} for operator {index}, "
                    "a deepinv.physics.Physics is needed"
                )
    for operator in mine.values():
        operator.to(ctx.device)
        if dtype is not None:
            # Not .to(dtype): that would drop the imaginary part of complex buffers.
            operator._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)
    everywhere = given if given is not None else list(mine.values())
    borrowed: int | None = None
    trained: tuple[torch.Tensor, ...] = ()
    if given is not None:
        trained = _trained(given, set(ownership.mine), ctx.device, dtype)
    else:
        assert callable(source)
        make = source
        for index, operator in mine.items():
            again = functools.partial(make, index, ctx.device, factory_kwargs)
            if borrowed is None and ctx.world_size > 1 and borrows(operator, again):
                borrowed = index
    alone = given is None and any(trained_slots(operator) for operator in mine.values())
    told = publish(
        ctx.comm,
        "how many operators there are, whether they are linear, and what of them is trained",
        (
            count,
            all(isinstance(operator, LinearPhysics) for operator in everywhere),
            borrowed,
            alone,
            tuple(TensorSpec.of(tensor) for tensor in trained),
            seeds_of(mine.items()),
        ),
    )
    if given is None:
        seeds = {index: seed for *_, own in told for index, seed in own.items()}
        generators = Generators.seeded(seeds, count)
    else:
        generators = Generators([getattr(op.noise_model, "rng", None) for op in given])
    if len({n for n, *_ in told}) > 1:
        raise ValueError(f"ranks have different numbers of operators: {[n for n, *_ in told]}")
    _check_trained(told)
    with ctx.ledger.block("physics"):
        if trained and not ctx.comm.alone:
            # Of a tensor that was computed, the user sees to what it was computed from.
            broadcast_tensors(ctx.comm, [t.detach() for t in trained if t.is_leaf])
    return DealtOperators(
        OwnedOperators(mine, ownership),
        all(linear for _, linear, *_ in told),
        tuple(float(cost) for cost in costs),
        generators,
        trained,
        any(tensors for _, _, _, tensors, *_ in told),
    )


def _check_trained(told: Sequence[Any]) -> None:
    borrowed = [(rank, index) for rank, (_, _, index, *_) in enumerate(told) if index is not None]
    if borrowed and len(told) > 1:
        rank, index = borrowed[0]
        raise ValueError(
            f"the factory gives operator {index} (on rank {rank}) a tensor that needs a gradient "
            "and exists outside the factory: called once more, it gave the same one. Factories run "
            "on the owners of operators alone, so other ranks would miss its gradient. Give it as "
            "a keyword argument of the call (physics.A(x, filter=h)) or to "
            "physics.update_parameters(...), or distribute a list of operators"
        )
    specs = [found for *_, found, _ in told]
    if any(found != specs[0] for found in specs):
        raise ValueError(
            "operators of the ranks have different parameters, or other tensors that need a "
            f"gradient: {['; '.join(map(str, found)) for found in specs]}. Build the same "
            "operators on every rank"
        )


def _trained(
    operators: Sequence[Physics],
    mine: set[int],
    device: torch.device,
    dtype: torch.dtype | None,
) -> tuple[torch.Tensor, ...]:
    """Parameters and tensors that need a gradient, each once, where and as the owner has them."""
    found: dict[int, torch.Tensor] = {}
    for index, operator in enumerate(operators):
        for slot, tensor in list(tensor_slots(operator)):
            parameter = isinstance(tensor, torch.nn.Parameter)
            if not (parameter or tensor.requires_grad):
                continue
            real = tensor.is_floating_point()
            if index not in mine:
                # The rest of the operator stays where it is: it is not used on this rank.
                wanted = tensor.detach() if parameter else tensor
                moved = wanted.to(device, dtype if real and dtype is not None else tensor.dtype)
                if parameter:
                    tensor.data = moved
                elif moved is not tensor:
                    slot.put(moved)
                    tensor = moved
            found[id(tensor)] = tensor
    return tuple(found.values())


def borrows(operator: Any, make_again: Callable[[], Any]) -> bool:
    """Whether a tensor of what a factory made takes its gradient to one that exists outside."""
    first = {id(leaf): leaf for _, tensor in trained_slots(operator) for leaf in origins(tensor)}
    if not first:
        return False
    with torch.random.fork_rng():
        again = make_again()
    return any(id(leaf) in first for _, tensor in trained_slots(again) for leaf in origins(tensor))


def _cost(operator: Physics) -> float:
    values = sum(p.numel() for p in operator.parameters())
    return float(1 + values + sum(b.numel() for b in operator.buffers()))
