"""Every block's gradients, in both layouts and for each number of ranks, against no ranks at all.

A block is a function of *leaves*: images, measurements, noise levels, step sizes; and of weights.
Its gradients are taken in every way that a training script may: ``backward`` (alone, again through
the same graph, and accumulated), ``torch.autograd.grad``, a second derivative through
``create_graph``, leaves whose memory is not contiguous. What comes back is the worst relative error
of each, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2, StackedPhysicsDataFidelity
from deepinv.optim.prior import RED, PnP
from deepinv.physics import StackedLinearPhysics
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from shardinv.tensor import ShardedTensor, Sharding
from shardinv.tensor.transfer import scatter
from tests.denoise.networks import Conditioned
from tests.fidelity.test_sharded import Fourth, local_operators
from tests.harness import WORLD_SIZES, WorkerPool, relative_error
from tests.physics.stacks import (
    HEIGHT,
    WIDTH,
    flat,
    generator,
    image,
    linear_operators,
    quiet,
    random_like,
    unflat,
)

TIGHT = 1e-10
LAYOUTS = ("replicated", "sharded")

#: By world size: how many operators, and the largest tile of an image of 7 by 5 px. Of three ranks
#: one has neither an operator nor a tile; of four, one has no operator.
OPERATORS = {1: 6, 2: 6, 3: 2, 4: 3}
TILES = {1: 4, 2: 3, 3: (4, 5), 4: 3}

Leaves = dict[str, Tensor]


@dataclass
class Block:
    """What is differentiated.

    Parameters
    ----------
    run
        From the leaves to a tensor or a list of tensors.
    leaves
        Their values, whole.
    weights
        Parameters that ``run`` uses by itself.
    homes
        Where leaves lie that are sharded.
    """

    run: Callable[..., Any]
    leaves: Leaves
    weights: dict[str, nn.Parameter] = field(default_factory=dict)
    homes: dict[str, Sharding] = field(default_factory=dict)


# -- the blocks ------------------------------------------------------------------------------------


@dataclass
class Side:
    """The undistributed blocks (no ranks) or the distributed ones, of images of a layout."""

    ctx: DistributedContext | None
    sharded: bool
    ranks: int

    def put(self, thing: Any, **options: Any) -> Any:
        return thing if self.ctx is None else distribute(thing, self.ctx, **options)

    @property
    def home(self) -> Sharding | None:
        """Where images lie."""
        if self.ctx is None or not self.sharded:
            return None
        return self.ctx.sharding((HEIGHT, WIDTH))

    def homes(self, *names: str) -> dict[str, Sharding]:
        return {} if self.home is None else dict.fromkeys(names, self.home)

    def enter(self, x: Tensor) -> Tensor:
        return x if self.home is None else scatter(x, self.home)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def named(y: Any) -> Leaves:
    return {f"y{index}": entry for index, entry in enumerate(flat(y))}


def stack(side: Side, operators: list[Any], **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    """A stack, measurements for it, and where those lie."""
    with quiet():
        reference = StackedLinearPhysics(operators)
        physics = side.put(reference, **options)
        y = random_like(reference.A(image(9)))
    # Two iterations of a linear solver show as much as fifty; L2's prox takes no option for it.
    physics.max_iter, physics.tol = 2, 1e-30
    homes = {}
    if side.home is not None and options.get("strategy") == "space":
        measured = physics.A(side.enter(image(9)))
        homes = {f"y{i}": measured[i].sharding for i in range(len(measured))}
    return physics, y, homes


def physics_blocks(side: Side, name: str, operators: list[Any], **options: Any) -> dict[str, Block]:
    physics, y, homes = stack(side, operators, **options)
    near = {} if side.home is None else {"layout": side.home}
    of_image = {"x": image(0)}

    def measured(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **given: function(unflat(list(given.values()), y))

    def proximal(x: Tensor, gamma: Tensor, **given: Tensor) -> Any:
        return physics.prox_l2(x, unflat(list(given.values()), y), gamma)

    def inverse(v: Any) -> Any:
        return physics.A_dagger(v, **near)

    def adjoint(v: Any) -> Any:
        return physics.A_adjoint(v, **near)

    return {
        f"{name}: A": Block(physics.A, of_image, homes=side.homes("x")),
        f"{name}: A_adjoint_A": Block(physics.A_adjoint_A, of_image, homes=side.homes("x")),
        f"{name}: A_adjoint": Block(measured(adjoint), named(y), homes=homes),
        f"{name}: A_A_adjoint": Block(measured(physics.A_A_adjoint), named(y), homes=homes),
        f"{name}: A_dagger": Block(measured(inverse), named(y), homes=homes),
        f"{name}: prox_l2": Block(
            proximal,
            {"x": image(1), "gamma": number(0.4), **named(y)},
            homes={**side.homes("x"), **homes},
        ),
    }


def fidelity_blocks(
    side: Side, name: str, operators: list[Any], **options: Any
) -> dict[str, Block]:
    physics, y, homes = stack(side, operators, **options)
    term = Fourth()
    quartic: Any = StackedPhysicsDataFidelity([term] * len(operators))
    square: Any = L2(sigma=0.8)
    if side.ctx is not None:
        quartic, square = side.put(term), side.put(square)
    weights = {f"weight.{n}": p for n, p in term.named_parameters()}
    leaves = {"x": image(0), **named(y)}
    homes = {**side.homes("x"), **homes}

    def value(x: Tensor, **given: Tensor) -> Any:
        return quartic.fn(x, unflat(list(given.values()), y), physics)

    def step(x: Tensor, stepsize: Tensor, **given: Tensor) -> Any:
        return x - stepsize * quartic.grad(x, unflat(list(given.values()), y), physics)

    def proximal(x: Tensor, gamma: Tensor, **given: Tensor) -> Any:
        given_y = unflat(list(given.values()), y)
        return square.prox(x, given_y, physics, gamma=gamma)

    return {
        f"{name}: fidelity value": Block(value, leaves, weights, homes),
        f"{name}: fidelity gradient step": Block(
            step, {**leaves, "stepsize": number(0.02)}, weights, homes
        ),
        f"{name}: fidelity prox": Block(proximal, {**leaves, "gamma": number(0.4)}, homes=homes),
    }


def network() -> Conditioned:
    torch.manual_seed(5)
    return Conditioned(2)


def network_blocks(side: Side) -> dict[str, Block]:
    tiles = {"patch_size": TILES[side.ranks], "overlap": 2, "max_batch_size": 2}
    denoiser = side.put(network(), **tiles)
    priors = [side.put(kind(network()), **tiles) for kind in (PnP, RED)]

    def weights(module: nn.Module) -> dict[str, nn.Parameter]:
        return {f"weight {name}": p for name, p in module.named_parameters()}

    leaves, homes = {"x": image(0), "sigma": number(0.3)}, side.homes("x")
    each = {"x": image(0), "sigma": torch.tensor([0.1, 0.4], dtype=torch.float64)}
    return {
        "denoiser": Block(lambda x, sigma: denoiser(x, sigma), leaves, weights(denoiser), homes),
        "denoiser, a level for each": Block(
            lambda x, sigma: denoiser(x, sigma), each, weights(denoiser), homes
        ),
        "PnP prox": Block(
            lambda x, sigma: priors[0].prox(x, sigma, gamma=1.0), leaves, weights(priors[0]), homes
        ),
        "RED gradient": Block(
            lambda x, sigma: priors[1].grad(x, sigma), leaves, weights(priors[1]), homes
        ),
    }


def layout_blocks(side: Side) -> dict[str, Block]:
    """Between layouts, and reductions. Without ranks each verb changes nothing."""
    shard: Callable[[Tensor], Tensor] = side.ctx.shard if side.ctx else lambda x: x
    gather: Callable[[Tensor], Tensor] = side.ctx.gather if side.ctx else lambda x: x

    def there_and_back(x: Tensor) -> Any:
        parts = shard(x)
        return [(parts * parts).sum(), gather(parts.sin()) * gather(parts)]

    def reductions(x: Tensor, z: Tensor) -> Any:
        flat_x, flat_z = x.flatten(), z.flatten()
        inner = [torch.dot(flat_x, flat_z), torch.vdot(flat_z, flat_x)]
        channels = [x.sum(dim=(2, 3)), x.mean(dim=(0, 2, 3), keepdim=True)]
        norms = [x.norm(), torch.linalg.vector_norm(x, dim=(1, 2, 3))]
        return [x.sum(), x.mean(), *norms, *inner, *channels]

    few, homes = torch.randn(2, 2, 2, 1, generator=generator(7), dtype=torch.float64), {}
    if side.ctx is not None and side.sharded:
        homes = dict.fromkeys("xz", side.ctx.sharding((2, 1)))  # some boxes are empty
    two = {"x": image(0), "z": image(1)}
    return {
        "gather of shard": Block(there_and_back, {"x": image(0)}, homes=side.homes("x")),
        "reductions": Block(reductions, two, homes=side.homes("x", "z")),
        "reductions of 2 px": Block(reductions, {"x": few, "z": few.flip(2) + 1}, homes=homes),
    }


def unrolled_blocks(
    side: Side, name: str, operators: list[Any], **options: Any
) -> dict[str, Block]:
    """PGD of three iterations, with a step size and a noise level for each."""
    physics, y, homes = stack(side, operators, **options)
    fidelity: Any = L2() if side.ctx else StackedPhysicsDataFidelity([L2()] * len(operators))
    model = PGD(
        fidelity, PnP(network()), stepsize=[0.3, 0.2, 0.1], sigma_denoiser=[0.3, 0.2, 0.1],
        max_iter=3, unfold=True, trainable_params=["stepsize", "sigma_denoiser"],
    ).double()  # fmt: skip
    model = side.put(model, **({"patch_size": TILES[side.ranks], "overlap": 2} if side.ctx else {}))
    weights = {f"weight {n}": p for n, p in model.named_parameters() if p.requires_grad}
    assert sum("stepsize" in name for name in weights) == 3, sorted(weights)

    def run(**given: Tensor) -> Any:
        return model(unflat(list(given.values()), y), physics)

    return {f"{name}: unrolled PGD": Block(run, named(y), weights, homes)}


def blocks(ctx: DistributedContext | None, layout: str, ranks: int) -> dict[str, Block]:
    """All of them; of images that are sharded, by operator and by space."""
    side = Side(ctx, layout == "sharded", ranks)
    found = {**network_blocks(side), **layout_blocks(side)}
    ways: list[tuple[str, Callable[[], list[Any]], dict[str, Any]]] = [
        ("stack", partial(linear_operators, OPERATORS[ranks]), {"strategy": "operator"})
    ]
    if side.sharded:
        ways.append(("by space", local_operators, {"strategy": "space"}))
    for name, operators, options in ways:
        given = {} if ctx is None else options
        if ctx is None and "space" in name:
            given = {}
        found |= physics_blocks(side, name, operators(), **given)
        # The fidelity of the test compares single tensors that are real.
        found |= fidelity_blocks(side, name, operators()[:4], **given)
        found |= unrolled_blocks(side, name, operators()[:4], **given)
    return found


# -- the ways to differentiate ---------------------------------------------------------------------


def real(t: Tensor) -> Tensor:
    return torch.view_as_real(t) if t.is_complex() else t


def outputs(block: Block, leaves: Leaves) -> list[Tensor]:
    with quiet():
        found = block.run(**leaves)
    return [found] if isinstance(found, Tensor) else flat(found)


def curved(tensors: list[Tensor]) -> Tensor:
    """A loss with derivatives of every order that depend on every value."""
    return sum((real(t) ** 3 / 3 + real(t).sin()).sum() for t in tensors)  # type: ignore[return-value]


def plain_sum(tensors: list[Tensor]) -> Tensor:
    """A loss whose cotangents are one number in memory, expanded to an image."""
    return sum(real(t).sum() for t in tensors)  # type: ignore[return-value]


def fresh(block: Block, strided: bool = False) -> Leaves:
    """Leaves that need a gradient, each where it belongs; perhaps transposed in memory."""

    def place(name: str, value: Tensor) -> Tensor:
        home = block.homes.get(name)
        local = (value if home is None else scatter(value, home).to_local()).clone()
        if strided and local.ndim > 1:
            local = local.transpose(0, -1).contiguous().transpose(0, -1)
        leaf = local if home is None else ShardedTensor.wrap(local, home)
        return leaf.requires_grad_()

    return {name: place(name, value) for name, value in block.leaves.items()}


def whole(t: Tensor | None) -> Tensor:
    assert t is not None
    return (t.full_tensor() if isinstance(t, ShardedTensor) else t).detach().clone()


def differentiate(block: Block) -> dict[str, Tensor]:
    """The outputs and the gradients, by way and by leaf."""
    found: dict[str, Tensor] = {}
    weights = list(block.weights.values())
    names = [*block.leaves, *block.weights]

    def note(way: str, gradients: Any) -> None:
        for name, gradient in zip(names, gradients, strict=True):
            found[f"{way}, {name}"] = whole(gradient)

    def grads(leaves: Leaves) -> list[Tensor | None]:
        return [t.grad for t in (*leaves.values(), *weights)]

    for weight in weights:
        weight.grad = None
    leaves = fresh(block)
    result = outputs(block, leaves)
    found |= {f"output {index}": whole(t) for index, t in enumerate(result)}
    curved(result).backward(retain_graph=True)
    note("backward", grads(leaves))
    plain_sum(result).backward()
    note("backward again", grads(leaves))
    curved(outputs(block, leaves)).backward()
    note("accumulated", grads(leaves))

    for weight in weights:
        weight.grad = None
    leaves = fresh(block, strided=True)
    both = [*leaves.values(), *weights]
    # The loss sees the outputs transposed, so the cotangents are not contiguous either.
    turned = [t.transpose(0, 1) if t.ndim > 1 else t for t in outputs(block, leaves)]
    note("grad, not contiguous", torch.autograd.grad(curved(turned), both))

    leaves = fresh(block)
    both = [*leaves.values(), *weights]
    first = torch.autograd.grad(curved(outputs(block, leaves)), both, create_graph=True)
    note("grad", first)
    # A Hessian-vector product, of a vector that depends on the leaves as well.
    note("second order", torch.autograd.grad(curved(list(first)), both))
    assert grads(leaves) == [None] * len(both), "autograd.grad left something in .grad"
    return found


def compare(ctx: DistributedContext, layout: str) -> dict[str, float]:
    """The error of everything in all blocks, by name."""
    mine = blocks(ctx, layout, ctx.world_size)
    theirs = blocks(None, layout, ctx.world_size)
    errors: dict[str, float] = {}
    for name, reference in theirs.items():
        expected = differentiate(reference)
        vanishing = [way for way, value in expected.items() if not value.any()]
        assert not vanishing, f"{name}: nothing to compare in {vanishing}"
        try:
            found = differentiate(mine[name])
        except Exception as error:
            error.add_note(f"in the block '{name}', {layout}, on {ctx.world_size} ranks")
            raise
        assert found.keys() == expected.keys(), name
        for way, value in expected.items():
            assert found[way].shape == value.shape, f"{name}, {way}"
            errors[f"{name}, {way}"] = relative_error(found[way], value)
    return errors


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gradients_are_the_undistributed_ones(
    pool: WorkerPool, world_size: int, layout: str
) -> None:
    for rank, errors in enumerate(pool.run(compare, layout, world_size=world_size)):
        wrong = {name: error for name, error in errors.items() if not error <= TIGHT}
        assert not wrong, f"rank {rank}: {wrong}"
        assert len(errors) > 150
