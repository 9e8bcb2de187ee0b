"""Operators by space on the ranks: values, adjoints, gradients, messages, both layouts."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise, product
from math import prod
from typing import Any

import pytest
import torch
from deepinv.physics import Blur, GaussianNoise, Physics, StackedLinearPhysics
from deepinv.utils.tensorlist import TensorList

from shardinv import DistributedContext
from shardinv.geometry import Box, Partition
from shardinv.physics.space import DistributedLocalPhysics, DistributedLocalStack, local_physics
from shardinv.tensor import LayoutError, ShardedTensor, Sharding, scatter
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    adjoint_dot_test,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
    compare_with_reference,
)
from tests.physics.space.operators import (
    SPATIAL,
    D,
    cases,
    composed,
    draw,
    kernel,
    quiet,
    transpose_of,
)

EXACT = 1e-12

#: One of every family; the rest is compared without ranks.
NAMES = (
    "Blur valid (4, 3)",
    "Blur circular (1, 9)",
    "Blur reflect (5, 5)",
    "Blur replicate fft",
    "Blur circular 3-D",
    "SpaceVaryingBlur circular True",
    "SpaceVaryingBlur valid False",
    "Downsampling reflect 3",
    "Upsampling circular",
    "BlurFFT on the whole",
    "BlurDownsampling",
    "Inpainting",
    "Decolorize",
)


#: Those tried on every mesh; others on the near-square one and on uneven boxes.
EVERY_MESH = ("Blur reflect (5, 5)", "Blur circular 3-D", "Downsampling reflect 3", "blur of blur")


def meshes(spatial: tuple[int, ...], ranks: int) -> list[tuple[int, ...]]:
    """All meshes of so many ranks, along one axis and along several."""
    counts = [range(1, ranks + 1)] * len(spatial)
    return [mesh for mesh in product(*counts) if prod(mesh) == ranks]


def uneven(ctx: DistributedContext, spatial: tuple[int, ...]) -> Sharding:
    """Boxes along the first axis: the second rank has none, the others unequal ones."""
    inner = [0, *[3, 3, spatial[0] - 1][: ctx.world_size - 1]]
    cuts = [*inner, spatial[0]]
    boxes = tuple(Box((a, *[0] * (len(spatial) - 1)), (b, *spatial[1:])) for a, b in pairwise(cuts))
    mesh = (ctx.world_size, *[1] * (len(spatial) - 1))
    return Sharding(ctx.comm, Partition(spatial, boxes), mesh)


def cut(x: torch.Tensor, sharding: Sharding) -> ShardedTensor:
    return ShardedTensor.wrap(x[(..., *sharding.box.slices())].clone(), sharding)


def build(name: str) -> tuple[Physics, tuple[int, ...]]:
    make, shape = {**cases(), **composed()}[name]
    with quiet():
        return make(), shape


def check_operator(ctx: DistributedContext, name: str) -> None:
    operator, shape = build(name)
    x = draw(*shape)
    with quiet():
        y = operator.A(x)
        v = draw(*y.shape, seed=3)
        back = transpose_of(operator, x, v)
        normal = transpose_of(operator, x, y)
    spatial = shape[2:]
    every = meshes(spatial, ctx.world_size) if name in EVERY_MESH else [None]
    layouts = [ctx.sharding(spatial, mesh) for mesh in every]
    for sharding in [*layouts, uneven(ctx, spatial)]:
        where = f"{name}, {sharding}"
        with quiet():
            ours = local_physics(operator, ctx, verify=False)
        assert isinstance(ours, DistributedLocalPhysics)
        mine = cut(x, sharding)
        measured = ours.A(mine)
        assert isinstance(measured, ShardedTensor)
        assert_close(measured.full_tensor(), y, EXACT, f"A, {where}")
        assert_close(ours.A(x), y, EXACT, f"A of a replicated image, {where}")
        other = cut(v, measured.sharding)
        found = ours.A_adjoint(other)
        assert found.sharding == sharding, where
        assert_close(found.full_tensor(), back, EXACT, f"adjoint, {where}")
        assert_close(ours.A_adjoint(v), back, EXACT, f"replicated adjoint, {where}")
        placed = ours.A_adjoint(v, layout=sharding)
        assert_close(placed.full_tensor(), back, EXACT, f"adjoint in boxes, {where}")
        assert_close(ours.A_adjoint_A(mine).full_tensor(), normal, EXACT, f"A^T A, {where}")
        assert_close(ours.A_vjp(mine, other).full_tensor(), back, EXACT, f"vjp, {where}")
        inner = (measured * other).sum() - (found * mine).sum()
        assert abs(inner) <= EXACT * v.norm() * y.norm(), where
        adjoint_dot_test(ours.A, ours.A_adjoint, x, v, rtol=EXACT)
        # Measurements that lie otherwise than the image's boxes say.
        fresh = local_physics(operator, ctx, verify=False)
        apart = fresh.A_adjoint(ctx.shard(v))
        assert_close(apart.full_tensor(), back, EXACT, f"adjoint alone, {where}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", [*NAMES, *composed()])
def test_operators(pool: WorkerPool, name: str, world_size: int) -> None:
    pool.run(check_operator, name, world_size=world_size)


def stack() -> list[Physics]:
    """Operators of unequal reach, border and output, pointwise ones and a chain among them."""
    names = ("Blur circular (1, 9)", "Blur reflect (5, 5)", "Downsampling valid 2", "Inpainting")
    operators = [build(name)[0] for name in names]
    return [*operators, build("blur of mask")[0], build("mask of blur")[0], build("Decolorize")[0]]


def check_stack(ctx: DistributedContext, reduction: str | None) -> None:
    with quiet():
        reference = StackedLinearPhysics(stack(), reduction=reduction)
    x = draw(2, 3, *SPATIAL)
    y = reference.A(x)
    v = TensorList([draw(*t.shape, seed=n) for n, t in enumerate(y)])
    parts = [transpose_of(op, x, t) for op, t in zip(reference.physics_list, v)]
    back = parts if reduction is None else sum(parts) / (len(v) if reduction == "mean" else 1)
    for sharding in (ctx.sharding(SPATIAL), uneven(ctx, SPATIAL)):
        with quiet():
            ours = local_physics(reference, ctx, verify=False)
        assert isinstance(ours, DistributedLocalStack)
        where = f"{reduction}, {sharding}"
        mine = cut(x, sharding)
        ctx.ledger.reset()
        measured = ours.A(mine)
        assert isinstance(measured, TensorList)
        expected = ours.bytes_per_call((2, 3, *SPATIAL), D)
        _check_halos(ctx, expected["A"], where)
        for number, (one, other) in enumerate(zip(measured, y)):
            assert_close(one.full_tensor(), other, EXACT, f"measurement {number}, {where}")
        theirs = TensorList([cut(t, one.sharding) for t, one in zip(v, measured)])
        ctx.ledger.reset()
        found = ours.A_adjoint(theirs)
        if reduction is not None:
            _check_halos(ctx, expected["A_adjoint"], where)
            assert_close(found.full_tensor(), back, EXACT, f"adjoint, {where}")
        else:
            assert_close([t.full_tensor() for t in found], back, EXACT, f"adjoints, {where}")
        assert_close(ours.A(x), y, EXACT, f"A of a replicated image, {where}")
        assert_close(ours.A_adjoint(v), back, EXACT, f"replicated adjoint, {where}")
        assert_close(ours[1].A(mine).full_tensor(), y[1], EXACT, f"one operator, {where}")


def _check_halos(ctx: DistributedContext, expected: tuple[int, ...], where: str) -> None:
    """Nothing but the halos that were predicted has been sent."""
    entries = ctx.ledger.entries()
    assert {(e.block, e.operation) for e in entries} <= {("physics", "halo")}, entries
    sent = sum(entry.bytes_sent for entry in entries)
    assert sent == expected[ctx.rank], f"{where}: sent {sent} B, predicted {expected}"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("reduction", ["sum", "mean", None])
def test_stacks(pool: WorkerPool, reduction: str | None, world_size: int) -> None:
    pool.run(check_stack, reduction, world_size=world_size)


def check_one_exchange(ctx: DistributedContext) -> None:
    operators = [
        Blur(filter=kernel(1, 1, k, k, seed=k), padding=padding)
        for k, padding in ((3, "reflect"), (7, "circular"), (5, "valid"), (4, "constant"))
    ]
    ours = local_physics(operators, ctx)
    x = ctx.shard(draw(1, 2, *SPATIAL))
    ctx.ledger.reset()
    y = ours.A(x)
    assert [entry.calls for entry in ctx.ledger.entries()] == [1]
    ctx.ledger.reset()
    ours.A_adjoint(y)
    assert [entry.calls for entry in ctx.ledger.entries()] == [1]
    text = ours.describe()
    for part in ("halo 3+3", "W 1.000", "rank 1", "Blur, Blur"):
        assert part in text, text
    # Pointwise operators send nothing.
    masks = local_physics(build("Inpainting")[0], ctx)
    ctx.ledger.reset()
    masks.A_adjoint(masks.A(ctx.shard(draw(1, 3, *SPATIAL))))
    assert not ctx.ledger.entries()


@pytest.mark.parametrize("world_size", [2, 4])
def test_one_exchange_for_a_whole_stack(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_one_exchange, world_size=world_size)


#: The parameters whose gradients are compared: kernels, and maps that lie on pixels.
GRADIENTS = {
    "Blur reflect (5, 5)": ("filter",),
    "Blur circular 3-D": ("filter",),
    "SpaceVaryingBlur circular True": ("filters", "multipliers"),
    "Inpainting": ("mask",),
}


def check_gradients(ctx: DistributedContext, name: str) -> None:
    spatial = build(name)[1][2:]
    for sharding in (ctx.sharding(spatial), uneven(ctx, spatial)):
        _compare_gradients(ctx, name, sharding)


def _compare_gradients(ctx: DistributedContext, name: str, sharding: Sharding) -> None:
    reference, shape = build(name)
    ours = local_physics(build(name)[0], ctx, verify=False)
    held = ours.branch.stages[0]
    leaves = GRADIENTS[name]
    for module in (reference, held):
        for leaf in leaves:
            setattr(module, leaf, getattr(module, leaf).clone().requires_grad_())
    x = draw(*shape)
    v = draw(*reference.A(x).shape, seed=3)
    output = ours.A(cut(x, sharding)).sharding

    def by_boxes(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        one, other = ours.A(scatter(x, sharding)), ours.A_adjoint(scatter(v, output))
        scaled = other * one.sum()
        return [one.full_tensor(), other.full_tensor(), (one**3).sum(), scaled.full_tensor()]

    def replicated(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        one, other = ours.A(x), ours.A_adjoint(v)
        return [one, other, (one**3).sum(), other * one.sum()]

    def whole(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        one, other = reference.A(x), _transpose_with_graph(reference, x, v)
        return [one, other, (one**3).sum(), other * one.sum()]

    for distributed in (by_boxes, replicated):
        compare_with_reference(
            distributed,
            whole,
            (x, v),
            {leaf: getattr(held, leaf) for leaf in leaves},
            {leaf: getattr(reference, leaf) for leaf in leaves},
            rtol=EXACT,
            rtol_gradients=1e-11,
        )


def _transpose_with_graph(operator: Any, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.zeros_like(x).requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(operator.A(at), at, v, create_graph=True)[0]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(pool: WorkerPool, name: str, world_size: int) -> None:
    """Of images, measurements and kernels, of both orders, also on ranks without a pixel."""
    pool.run(check_gradients, name, world_size=world_size)


def check_solvers(ctx: DistributedContext) -> None:
    with quiet():
        operators = [build(n)[0] for n in ("Blur circular (4, 3)", "Downsampling reflect 2")]
        reference = StackedLinearPhysics(operators)
        ours = local_physics(operators, ctx, verify=False)
        x = draw(2, 3, *SPATIAL)
        mine = ctx.shard(x)
        y, measured = reference.A(x), ours.A(mine)
        z = draw(2, 3, *SPATIAL, seed=5)
        options = {"max_iter": 12, "tol": 1e-30}
        reference.implicit_backward_solver = False
        near = reference.prox_l2(z, y, 0.7, **options)
        assert_close(ours.prox_l2(z, y, 0.7, **options), near, 1e-9, "replicated prox")
        found = ours.prox_l2(ctx.shard(z), measured, 0.7, **options)
        assert_close(found.full_tensor(), near, 1e-9, "prox")
        # A norm of about 1, so that every solver converges.
        one, single = build("Blur reflect (5, 5)")[0], build("Blur reflect (5, 5)")[0]
        one.filter = single.filter = one.filter / one.filter.sum()
        one.implicit_backward_solver = False
        ours_one = local_physics(single, ctx, verify=False)
        # BiCGStab takes A itself where it is square, and soon does not converge: a few steps.
        for solver, steps in (("CG", 12), ("BiCGStab", 3), ("lsqr", 12)):
            options["max_iter"] = steps
            wanted = one.prox_l2(z, one.A(x), 0.7, solver=solver, **options)
            found = ours_one.prox_l2(ctx.shard(z), ours_one.A(mine), 0.7, solver=solver, **options)
            assert_close(found.full_tensor(), wanted, 1e-8, solver)
        mask, cut_mask = build("Inpainting")[0], local_physics(build("Inpainting")[0], ctx)
        y = mask.A(x)
        found = cut_mask.prox_l2(mine, cut_mask.A(mine), 0.7)
        assert_close(found.full_tensor(), mask.prox_l2(x, y, 0.7), EXACT, "prox of a mask")
        found = cut_mask.A_dagger(cut_mask.A(mine))
        assert_close(found.full_tensor(), mask.A_dagger(y), EXACT, "inverse of a mask")


@pytest.mark.parametrize("world_size", [1, 3])
def test_inverses(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_solvers, world_size=world_size)


def check_norms_and_noise(ctx: DistributedContext) -> list[torch.Tensor]:
    with quiet():
        operators = [build(n)[0] for n in ("Blur circular (4, 3)", "Inpainting")]
        reference = StackedLinearPhysics(operators)
        for operator in operators:
            operator.set_noise_model(GaussianNoise(0.1))
        ours = local_physics(operators, ctx, verify=False)
        x = draw(2, 3, *SPATIAL)
        mine = ctx.shard(x)
        options = {"max_iter": 20, "tol": 1e-30, "verbose": False}
        torch.manual_seed(4)
        norm = reference.compute_sqnorm(x, **options)
        torch.manual_seed(4)
        assert_close(ours.compute_sqnorm(x, **options), norm, EXACT, "norm of a replicated image")
        # The method starts elsewhere on a sharded one.
        assert_close(ours.compute_sqnorm(mine, **options), norm, 5e-2, "norm")
    torch.manual_seed(5)
    sharded = [y.full_tensor() for y in ours(mine)]
    torch.manual_seed(5)
    assert_close(list(ours(x)), sharded, 0.0, "noise of both layouts")
    masked = build("Demosaicing")[0]
    masked.set_noise_model(GaussianNoise(0.1))
    noisy = local_physics(masked, ctx)(mine).full_tensor()
    assert not noisy[:, masked.mask[0] == 0].any(), "noise where there is no pixel"
    twin = deepcopy(ours)
    assert_close(twin.A(mine)[0].full_tensor(), ours.A(x)[0], 0.0, "a copy")
    return sharded


def test_norms_and_noise(pool: WorkerPool) -> None:
    """Noise is the same for any number of ranks."""
    results = [out for w in WORLD_SIZES for out in pool.run(check_norms_and_noise, world_size=w)]
    assert_same_on_every_rank(results)


def check_updates(ctx: DistributedContext) -> None:
    x = ctx.shard(draw(2, 3, *SPATIAL))
    for name, values in (
        ("Blur reflect (5, 5)", {"filter": kernel(1, 1, 3, 6, seed=9)}),
        ("Inpainting", {"mask": kernel(1, 3, *SPATIAL, seed=9)}),
        ("blur of mask", {"mask": kernel(1, 3, *SPATIAL, seed=9)}),
        ("SpaceVaryingBlur reflect True", {"multipliers": kernel(1, 3, 2, *SPATIAL, seed=9)}),
    ):
        with quiet():
            reference, _ = build(name)
            ours = local_physics(build(name)[0], ctx)
        ours.A(x)
        assert_close(
            ours.A(x, **values).full_tensor(), reference.A(x.full_tensor(), **values), EXACT, name
        )
        held = sum(t.numel() for t in ours.buffers())
        if name == "Inpainting":
            assert held < 3 * prod(SPATIAL) * 0.7 or ctx.world_size == 1, "the mask is held whole"


@pytest.mark.parametrize("world_size", [1, 2])
def test_updated_parameters(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_updates, world_size=world_size)


def check_refusals(ctx: DistributedContext, case: str) -> None:
    blur = local_physics(build("Blur reflect (5, 5)")[0], ctx)
    x = draw(2, 3, *SPATIAL)
    if case == "mixed":
        stack = local_physics([build("Blur reflect (5, 5)")[0], build("Inpainting")[0]], ctx)
        y = stack.A(ctx.shard(x))
        stack.A_adjoint(TensorList([y[0], y[1].full_tensor()]))
    elif case == "small":
        blur.A(ctx.shard(x[..., :2, :]))
    elif case == "channels":
        local_physics(build("Blur reflect for each batch and channel")[0], ctx).A(
            ctx.shard(x[:, :2])
        )
    elif case == "type":
        blur.A(ctx.shard(x.float()))
    elif case == "mask":
        mask = local_physics(build("Inpainting")[0], ctx)
        mask.A(ctx.shard(x, (ctx.world_size, 1)))
        mask.A(ctx.shard(x, (1, ctx.world_size)))
    elif case == "shape":
        blur.A_adjoint(ctx.shard(x))
        stack = local_physics([build("Blur reflect (5, 5)")[0], build("Inpainting")[0]], ctx)
        stack.A_adjoint(TensorList([ctx.shard(x), ctx.shard(x[..., :-1])]))


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("mixed", LayoutError, "replicated"),
        ("small", ValueError, "too short"),
        ("channels", ValueError, "3 channels"),
        ("type", ValueError, "float32"),
        ("mask", LayoutError, "masks are cut"),
        ("shape", LayoutError, "lies as"),
    ],
)
def test_refusals_on_every_rank(
    pool: WorkerPool, case: str, error: type[Exception], message: str
) -> None:
    failures = pool.run(check_refusals, case, world_size=4, expect_error=True)
    assert_every_rank_raised(failures, error, message)
