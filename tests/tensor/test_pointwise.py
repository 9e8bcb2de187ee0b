"""Every pointwise rule against the function of torch: values, types, gradients, operands."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shardinv import DistributedContext
from shardinv.tensor import LayoutError, ShardedTensor, registry
from shardinv.tensor.registry import name_of
from shardinv.tensor.rules.pointwise import pointwise
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.tensor.compare import compare, meshes, run_cases

SHAPE = (2, 3, 5, 7)
THIN = (2, 1, 2, 3)

Call = tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]


def operands(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Images of each kind, with values at which nearly every function is smooth."""
    numbers = torch.rand(3, *shape, dtype=torch.float64) * 0.8 + 0.1
    return {
        "real": numbers[0],
        "other": numbers[1],
        "third": numbers[2],
        "complex": torch.complex(numbers[0], numbers[1]),
        "int": torch.randint(1, 7, shape),
        "ints": torch.randint(1, 7, shape),
        "bool": numbers[0] > 0.5,
        "bools": numbers[1] > 0.5,
    }


SIGNATURES: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...] = (
    (("real",), ()),
    (("real", "other"), ()),
    (("real", "other", "third"), ()),
    (("bool", "real", "other"), ()),
    (("real", "bool", "other"), ()),
    (("real",), (0.5,)),
    (("real",), (2,)),
    (("real",), (0.2, 0.6)),
    (("real", "other"), (0.5,)),
    (("real", "bool"), (0.5,)),
    (("int",), ()),
    (("int", "ints"), ()),
    (("int",), (2,)),
    (("bool", "bools"), ()),
    (("complex",), ()),
)
SWAPPED = ("polygamma", "float_power")


def attempts(function: Callable[..., Any], images: dict[str, torch.Tensor]) -> list[Any]:
    """The signatures with which a function of torch can be called on plain images."""
    found = []
    for names, numbers in SIGNATURES:
        if name_of(function).endswith("where") and len(names) < 3:
            continue  # positions, which are refused
        tensors = [images[name].clone() for name in names]
        args = (*numbers, *tensors) if "polygamma" in name_of(function) else (*tensors, *numbers)
        if "polygamma" in name_of(function) and isinstance(function, type(torch.Tensor.add)):
            args = (*tensors, *numbers)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = function(*args)
        except (TypeError, RuntimeError, ValueError, NotImplementedError):
            continue
        known = not isinstance(result, torch.Tensor) or not bool(result.isnan().any())
        if result is not NotImplemented and known:
            found.append((names, numbers))
    return found


def differentiable(call: Callable[..., Any], tensors: list[torch.Tensor]) -> bool:
    """Whether torch has a derivative of a call."""
    leaves = [t.clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
    try:
        result = call(*leaves)
        result = result[0] if isinstance(result, list) else result
        result.abs().sum().backward()
    except (RuntimeError, NotImplementedError, AttributeError):
        return False
    return True


def every_rule(ctx: DistributedContext, part: int, parts: int) -> int:
    """Every function that the table sends to the pointwise rule, with all signatures it takes."""
    functions = [f for f, rule in registry._rules.items() if rule is pointwise and callable(f)]
    cases = []
    uncalled = []
    for number, function in enumerate(functions):
        if number % parts != part:
            continue
        name = name_of(function)
        shape = THIN if number % 3 == 0 else SHAPE
        images = operands(shape)
        signatures = attempts(function, images)
        if not signatures:
            uncalled.append(name)
        mesh = meshes(ctx.world_size, 2)[number // 3 % len(meshes(ctx.world_size, 2))]
        for names, numbers in signatures[:3]:
            tensors = [images[kind] for kind in names]
            method = isinstance(function, type(torch.Tensor.add))
            first = "polygamma" in name and not method
            in_place = name.rstrip("_") != name or name.split(".")[-1].startswith("__i")
            in_place = in_place and not name.endswith("__invert__")

            def call(
                *xs: torch.Tensor,
                function: Any = function,
                numbers: Any = numbers,
                first: bool = first,
                in_place: bool = in_place,
            ) -> Any:
                if in_place:
                    xs = (xs[0].clone(), *xs[1:])
                result = function(*numbers, *xs) if first else function(*xs, *numbers)
                return [result, xs[0]] if in_place else result

            what = f"{name}{names}{numbers}"
            order = int(differentiable(call, tensors))
            case = partial(compare, ctx, what, call, *tensors, mesh=mesh, order=order)
            cases.append((what, case))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_cases(ctx, cases)
    # Real parts of real numbers and the like: nothing that one of the signatures does not reach.
    assert set(uncalled) <= UNCALLED, sorted(set(uncalled) - UNCALLED)
    return len(cases)


UNCALLED = {"torch.Tensor.__div__", "torch.Tensor.__rdiv__"}


@pytest.mark.parametrize("world_size", [1, 3])  # no message: any size will do
def test_every_rule(pool: WorkerPool, world_size: int) -> None:
    parts = {1: 1, 2: 2, 3: 2, 4: 2}[world_size]
    count = [
        pool.run(every_rule, part, parts, world_size=world_size, timeout=120)[0]
        for part in range(parts)
    ]
    assert sum(count) > 300


def programs(ctx: DistributedContext) -> None:
    """Several operations in a row, operands of every kind, to second order."""
    real = torch.float64
    x, y = torch.randn(2, 2, 3, 7, 5, dtype=real)
    z = torch.complex(x, y)
    volume = torch.randn(2, 1, 5, 4, 3, dtype=real)
    number = torch.tensor(0.7, dtype=real)
    channels = torch.randn(1, 3, 1, 1, dtype=real)
    images = torch.randn(2, 1, 1, 1, dtype=real)
    cases: list[tuple[str, Any, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = [
        ("number", lambda x, w: x * w + w**2 * x.sin(), (x,), (number,)),
        ("number first", lambda x, w: w / (x**2 + 1) - w, (x,), (number,)),
        ("channels", lambda x, c: torch.exp(c * x) - c, (x,), (channels,)),
        ("images", lambda x, c: torch.where(x > 0, c * x, x / (2 + c**2)), (x,), (images,)),
        ("two", lambda x, y: torch.atan2(x, y) * torch.hypot(x, y), (x, y), ()),
        ("complex", lambda z, w: (z * z.conj() * w).real + z.abs() + z.imag, (z,), (number,)),
        ("complex number", lambda z, w: z * w * 1j, (z,), (torch.tensor(1 - 2j).to(z.dtype),)),
        ("built", lambda x, y: torch.complex(x, y) * torch.polar(x.abs(), y), (x, y), ()),
        ("lerp", lambda x, y, w: torch.lerp(x, y, w), (x, y), (number,)),
        ("addcmul", lambda x, y: torch.addcmul(x, y, x, value=0.3), (x, y), ()),
        ("clamp", lambda x, y: x.clamp(y - 1, y + 0.1) + x.clamp(-0.2, 0.3), (x, y), ()),
        ("clamp by plain", lambda x, w: x.clamp(min=-w, max=w), (x,), (number,)),
        ("masks", lambda x, y: (x * (y > 0)).masked_fill((x > 0) & ~(y > 1), 0.5), (x, y), ()),
        ("float32", lambda x: x.float() * 2.0 + x.to(torch.float32), (x,), ()),
        ("types", lambda x: [x.int(), x.bool(), x.half(), x > 0, x.type(torch.float32)], (x,), ()),
        ("volume", lambda v, w: v.tanh() * w + v.unsqueeze(1), (volume,), (number,)),
        ("more axes", lambda x, m: x * m, (x,), (torch.randn(4, 1, 1, 1, 1, dtype=real),)),
        ("lead broadcast", lambda x, y: x[:, :1] * y + x.sum(1, keepdim=True), (x, y), ()),
        ("folded", lambda x, m: x.flatten(1) * m, (x,), (torch.randn(2, 1, dtype=real),)),
        ("activations", lambda x: F.silu(x) + F.leaky_relu(x, 0.1) + F.softplus(x), (x,), ()),
        ("elu", lambda x: F.elu(x, inplace=False) * F.hardtanh(x, -0.3, 0.4), (x,), ()),
    ]
    todo = []
    for name, function, inputs, params in cases:
        for mesh in meshes(ctx.world_size, inputs[0].ndim - 2):
            case = partial(compare, ctx, name, function, *inputs, params=params, mesh=mesh)
            todo.append((name, case))
    run_cases(ctx, todo)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_programs(pool: WorkerPool, world_size: int) -> None:
    pool.run(programs, world_size=world_size)


def in_place(ctx: DistributedContext) -> None:
    """Writing to a sharded tensor: the same object, views see it, gradients go on."""
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    y = torch.randn_like(x)

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        z = x.clone()
        same = z
        z += y
        z *= w
        z.clamp_(-1, 2)
        z[:, 1] += 3 * y[:, 0]
        z.add_(x, alpha=0.5).mul_(w)
        view = z[:, 2]
        view.zero_()
        z[z > 1.5] = 0.25
        z[1] = w
        empty = torch.zeros_like(x)
        empty.copy_(z)
        empty[:, :, 2:] = y[:, :, :-2]
        empty[..., :-1] -= x[..., 1:]
        F.relu(empty, inplace=True)
        assert same is z
        return [z, view, empty]

    for mesh in meshes(ctx.world_size, 2):
        w = torch.tensor(0.7, dtype=torch.float64)
        compare(ctx, "in place", program, x, y, params=(w,), mesh=mesh)
    sharded = ctx.shard(x)
    before = id(sharded)
    sharded -= 1
    assert id(sharded) == before
    assert not sharded.requires_grad
    leaf = ctx.shard(x).requires_grad_()
    sharded += leaf
    assert sharded.requires_grad


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_in_place(pool: WorkerPool, world_size: int) -> None:
    pool.run(in_place, world_size=world_size)


def conversions(ctx: DistributedContext) -> None:
    x = ctx.shard(torch.randn(1, 2, 6, 5))
    plain = torch.randn(3)
    assert plain.to(x).dtype == x.dtype
    assert plain.double().type_as(x).dtype == torch.float32
    assert isinstance(x.cpu(), ShardedTensor)
    assert isinstance(x.to("cpu"), ShardedTensor)
    assert x.to(plain.double()).dtype == torch.float64
    assert x.to(torch.float16).full_tensor().dtype == torch.float16
    assert x.type_as(plain.double()).dtype == torch.float64
    assert torch.result_type(x, 1.5) == torch.float32
    assert torch.result_type(x, plain.double()) == torch.float64


@pytest.mark.parametrize("world_size", [1, 3])
def test_conversions(pool: WorkerPool, world_size: int) -> None:
    pool.run(conversions, world_size=world_size)


def refused(ctx: DistributedContext, case: str) -> None:
    x = ctx.shard(torch.randn(1, 2, 6, 5))
    plain = torch.randn(1, 2, 6, 5)
    if case == "whole":
        x + plain
    elif case == "whole first":
        plain - x
    elif case == "row":
        x * torch.randn(5)
    elif case == "in place":
        plain.add_(x)
    elif case == "augmented":
        plain += x
    elif case == "copy":
        x.copy_(plain)
    elif case == "mask":
        x.masked_fill(plain > 0, 0.0)
    elif case == "out":
        torch.add(x, x, out=plain)
    elif case == "where":
        torch.where(x.flatten() > -100)
    elif case == "folded":
        x.flatten(1) * x


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("whole", "varies in space"),
        ("whole first", "varies in space"),
        ("row", "varies in space"),
        ("in place", "write a sharded tensor into a replicated one"),
        ("augmented", "write a sharded tensor into a replicated one"),
        ("copy", "varies in space"),
        ("mask", "varies in space"),
        ("out", "takes no out="),
        ("folded", "a flattened one"),
    ],
)
def test_refused(pool: WorkerPool, world_size: int, case: str, message: str) -> None:
    outcomes = pool.run(refused, case, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, LayoutError, message)


@pytest.mark.parametrize("world_size", [1, 3])
def test_positions_are_refused(pool: WorkerPool, world_size: int) -> None:
    outcomes = pool.run(refused, "where", world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, NotImplementedError, "gives positions")
