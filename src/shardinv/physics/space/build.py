"""From an operator or a stack to the block that runs it by space."""

from __future__ import annotations

from collections.abc import Sequence

from deepinv.physics import Physics, StackedPhysics

from shardinv.context import DistributedContext
from shardinv.context.images import Mesh
from shardinv.exchange import broadcast_tensors
from shardinv.physics.linear import reduction_of
from shardinv.physics.noise import (
    Generators,
)
from shardinv.physics.space.block import LocalBlock
from shardinv.physics.space.linear import DistributedLocalPhysics
from shardinv.physics.space.registry import make_local_form
from shardinv.physics.space.stack import DistributedLocalStack


def local_physics(
    source: Physics | Sequence[Physics],
    ctx: DistributedContext,
    *,
    mesh: Mesh = None,
    align: int | Sequence[int] = 1,
    verify: bool = True,
    generators: Generators | None = None,
) -> DistributedLocalPhysics | DistributedLocalStack:
    """Distribute an operator or a stack by space: each rank has a box of the image.

    Parameters
    ----------
    source
        A linear operator, a composition, a stack, or a list of them.
    ctx
        The ranks.
    mesh, align
        How replicated images are cut, as for ``ctx.shard``. Sharded ones are taken as they lie.
    verify
        Compare each operator with its local form on a small image.
    generators
        Which operators of a stack draw noise from a random generator of their own; by default those
        whose noise model has one that no other has.

    Raises
    ------
    shardinv.physics.space.NotLocalError
        If an operator has no local form; names it and says why.
    shardinv.physics.space.LocalFormError
        If a local form is not its operator.

    Notes
    -----
    Kernels and maps that need a gradient get rank 0's values.
    """
    if isinstance(source, StackedPhysics) or (
        isinstance(source, Sequence) and not isinstance(source, Physics)
    ):
        operators: list[Physics] = []
        for operator in source.physics_list if isinstance(source, StackedPhysics) else source:
            operators.extend(
                operator.physics_list if isinstance(operator, StackedPhysics) else [operator]
            )
        forms = [make_local_form(operator, verify) for operator in operators]
        reduction = reduction_of(source) if isinstance(source, StackedPhysics) else "sum"
        stack = DistributedLocalStack(
            ctx, forms, operators, reduction, mesh=mesh, align=align, generators=generators
        )
        _give_all_ranks(stack)
        return stack
    form = make_local_form(source, verify)
    physics = DistributedLocalPhysics(ctx, form, source, mesh=mesh, align=align)
    _give_all_ranks(physics)
    return physics


def _give_all_ranks(block: LocalBlock) -> None:
    """Rank 0's values of the kernels and maps that are trained."""
    tensors = {
        id(tensor): tensor
        for tensor in (*block.program.parameters(), *block.program.buffers())
        if tensor.requires_grad and tensor.is_leaf
    }
    if tensors:
        with block.ctx.ledger.block(block.block):
            broadcast_tensors(block.ctx.comm, [tensor.detach() for tensor in tensors.values()])
