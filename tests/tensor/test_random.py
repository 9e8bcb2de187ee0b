"""Draws on sharded tensors: those of the whole, for any number of ranks, mesh and layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import deepinv.physics as dinv
import pytest
import torch
import torch.nn.functional as F

from shardinv import DistributedContext
from shardinv.exchange import DisagreementError, RankError
from shardinv.tensor import CounterRandom, LayoutError, ShardedTensor, UnsupportedOperation
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
)

Tensor = torch.Tensor
Random = Callable[[Tensor], Tensor]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def image(shape: tuple[int, ...] = (2, 3, 13, 9), dtype: torch.dtype = torch.float64) -> Tensor:
    """Between 0.1 and 1.1: positive, as noise of counts wants it."""
    return torch.rand(shape, generator=generator(0), dtype=torch.float64).add(0.1).to(dtype)


def meshes(ctx: DistributedContext, axes: int) -> list[tuple[int, ...]]:
    """The first axis cut, the last one, and both where there are four ranks."""
    size, one = ctx.world_size, (1,) * (axes - 1)
    if size == 1:
        return [(size, *one)]
    return [(size, *one), (*one, size), *([(2, 2, *one[1:])] if size == 4 else [])]


NOISES: dict[str, Callable[[], dinv.NoiseModel]] = {
    "zero": lambda: dinv.ZeroNoise(),
    "gaussian": lambda: dinv.GaussianNoise(0.3),
    "gaussian, a level each": lambda: dinv.GaussianNoise(torch.tensor([0.1, 0.2])),
    "gaussian, generator": lambda: dinv.GaussianNoise(0.3, rng=generator(5)),
    "uniform gaussian": lambda: dinv.UniformGaussianNoise(0.1, 0.5),
    "uniform gaussian, generator": lambda: dinv.UniformGaussianNoise(0.1, 0.5, rng=generator(5)),
    "poisson": lambda: dinv.PoissonNoise(0.5),
    "poisson, high rates": lambda: dinv.PoissonNoise(0.01, clip_positive=True),
    "poisson, generator": lambda: dinv.PoissonNoise(0.5, normalize=False, rng=generator(6)),
    "poisson gaussian": lambda: dinv.PoissonGaussianNoise(0.5, 0.1),
    "poisson gaussian, generator": lambda: dinv.PoissonGaussianNoise(
        0.5, 0.1, clip_positive=True, rng=generator(2)
    ),
    "log poisson": lambda: dinv.LogPoissonNoise(),
    "gamma": lambda: dinv.GammaNoise(2.0),
    "gamma, low": lambda: dinv.GammaNoise(torch.tensor(0.3)),
    "fisher tippett": lambda: dinv.FisherTippettNoise(1.5),
    "uniform": lambda: dinv.UniformNoise(0.3),
    "salt and pepper": lambda: dinv.SaltPepperNoise(0.2, 0.2),
    "rician": lambda: dinv.RicianNoise(0.2),
    "laplace": lambda: dinv.LaplaceNoise(0.2),
}


def test_every_noise_model_is_here() -> None:
    known = {type(make()) for make in NOISES.values()} | {dinv.NoiseModel}
    everything = {
        thing
        for thing in vars(dinv).values()
        if isinstance(thing, type) and issubclass(thing, dinv.NoiseModel)
    }
    assert everything == known


def noise_models(ctx: DistributedContext, shape: tuple[int, ...]) -> None:
    """Each model under CounterRandom: plain, and sharded over each mesh."""
    x = image(shape)
    for name, make in NOISES.items():
        with CounterRandom(4):
            model = make()
            expected = model(x)
            if name != "zero":
                assert not torch.equal(model(x), expected), name
        for mesh in meshes(ctx, x.ndim - 2):
            with CounterRandom(4):
                noisy = make()(ctx.shard(x, mesh))
            assert isinstance(noisy, ShardedTensor), name
            # Logarithms may round differently in another place of a vector.
            assert_close(noisy.full_tensor(), expected, 1e-14, f"{name}, mesh {mesh}, ")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_noise_models(pool: WorkerPool, world_size: int) -> None:
    pool.run(noise_models, (2, 3, 13, 9), world_size=world_size)


@pytest.mark.parametrize("shape", [(2, 1, 3, 7), (2, 1, 5, 6, 7)], ids=["few rows", "volume"])
def test_noise_models_of_other_shapes(pool: WorkerPool, shape: tuple[int, ...]) -> None:
    pool.run(noise_models, shape, world_size=4)


FUNCTIONS: dict[str, Random] = {
    "randn_like": torch.randn_like,
    "randn_like, complex": lambda x: torch.randn_like(x, dtype=torch.complex64),
    "rand_like": lambda x: torch.rand_like(x, dtype=torch.float32),
    "rand_like, complex": lambda x: torch.rand_like(x, dtype=torch.complex128),
    "randint_like": lambda x: torch.randint_like(x, 3, 9),
    "randint_like, one bound": lambda x: torch.randint_like(x, high=9, dtype=torch.int32),
    "normal_": lambda x: torch.empty_like(x).normal_(1.0, std=3.0),
    "normal_, folded": lambda x: torch.zeros_like(x).flatten(1).normal_(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-2, to=3),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(0.1, 0.2),
    "random_": lambda x: torch.empty_like(x, dtype=torch.uint8).random_(),
    "random_, to": lambda x: torch.empty_like(x).random_(7),
    "random_, from and to": lambda x: torch.empty_like(x).random_(-5, 7),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "bernoulli_, chances": lambda x: torch.empty_like(x).bernoulli_(x / 2),
    "bernoulli_, a chance for each": lambda x: torch.empty_like(x).bernoulli_(
        torch.tensor([0.2, 0.5, 0.7]).view(3, 1, 1)
    ),
    "bernoulli": lambda x: torch.bernoulli(x / 2),
    "bernoulli, of a number": lambda x: x.bernoulli(0.4),
    "poisson": lambda x: torch.poisson(x * 20),
    "poisson, folded": lambda x: torch.poisson(x.reshape(2, -1) * 20),
    "normal, means": lambda x: torch.normal(x, 0.1),
    "normal, deviations": lambda x: torch.normal(2.0, x),
    "normal, both": lambda x: torch.normal(x, x * 2),
    "normal, a plain mean": lambda x: torch.normal(torch.ones(3, 1, 1, dtype=x.dtype), x),
    "normal, out": lambda x: torch.normal(x, 0.1, out=torch.zeros_like(x)),
    "standard gamma": torch._standard_gamma,
    "trailing axis": lambda x: torch.randn_like(x.unsqueeze(-1).expand(2, 3, 13, 9, 2)),
    "permuted": lambda x: torch.randn_like(x.transpose(0, 1)),
    "a distribution": lambda x: torch.distributions.Normal(x, 0.5).sample(),
    "a plain factor between": lambda x: torch.randn(2, 1, 1, 1) * torch.rand_like(x),
    "half": lambda x: torch.randn_like(x, dtype=torch.float16),
    "in place, of a crop": lambda x: (x + 0)[..., 2:11, 1:].normal_(),
}


def functions(ctx: DistributedContext) -> None:
    x = image()
    for name, draw in FUNCTIONS.items():
        with CounterRandom(9):
            expected = draw(x)
        for mesh in meshes(ctx, 2):
            sharded = ctx.shard(x, mesh)
            with CounterRandom(9):
                drawn = draw(sharded)
            assert isinstance(drawn, ShardedTensor), name
            rtol = 1e-3 if drawn.dtype == torch.float16 else 1e-6 if "complex" in name else 1e-14
            assert_close(drawn.full_tensor(), expected, rtol, f"{name}, mesh {mesh}, ")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_functions(pool: WorkerPool, world_size: int) -> None:
    pool.run(functions, world_size=world_size)


# -- seeds -----------------------------------------------------------------------------------------


def sequence(ctx: DistributedContext, seeds: str) -> list[Tensor]:
    """Draws without CounterRandom, ranks seeded as by the context or all alike."""
    x = ctx.shard(image())
    if seeds == "alike":
        torch.manual_seed(0)
    mine, shared = generator(3), generator(3)
    if ctx.rank:  # another rank's own draws change nothing
        torch.randn(ctx.rank)
    first, second = torch.randn_like(x), torch.randn_like(x)
    given = [torch.randn_like(x), torch.empty_like(x).normal_(generator=mine)]
    given += [torch.empty_like(x).normal_(generator=mine), torch.poisson(x, generator=shared)]
    torch.manual_seed(0)
    again = torch.randn_like(x)
    torch.rand(ctx.rank)
    torch.manual_seed(0)
    once_more = torch.empty_like(x).normal_()
    return [y.full_tensor() for y in (first, second, *given, again, once_more)]


@pytest.mark.parametrize("seeds", ["each its own", "alike"])
def test_seeds(pool: WorkerPool, seeds: str) -> None:
    context = {"seed": 0, "seed_offset": seeds == "each its own"}
    results = {
        size: pool.run(sequence, seeds, world_size=size, context=context) for size in WORLD_SIZES
    }
    for size in WORLD_SIZES:
        assert_same_on_every_rank(results[size])
        assert_close(results[size][0], results[1][0], 0.0, f"{size} ranks against one, ")
    first, second, third, *given, again, once_more = results[1][0]
    assert torch.equal(again, first)  # rank 0's generator was at the seed 0 at first
    assert torch.equal(once_more, first)
    different = torch.stack([first, second, third, *given[:2]])
    # No two draws and no two places have a number in common.
    assert different.unique().numel() == different.numel()
    deviation = float(different.square().mean()) - 1
    assert abs(deviation) < 5.5 * math.sqrt(2 / different.numel())


def generators_advance(ctx: DistributedContext) -> list[Tensor]:
    """What torch's generator and one of one's own give after a draw, and after none."""
    x = ctx.shard(image())
    own = generator(1)
    torch.manual_seed(1)
    torch.randn_like(x)
    torch.empty_like(x).normal_(generator=own)
    after = [torch.rand(2), torch.rand(2, generator=own)]
    torch.manual_seed(1)
    with CounterRandom(0):
        torch.randn_like(x)
        torch.randn(3)
    return [*after, torch.rand(2)]


def test_ranks_that_were_alike_stay_alike(pool: WorkerPool) -> None:
    results = pool.run(generators_advance, world_size=3)
    assert_same_on_every_rank(results)
    _, own, under_the_mode = results[0]
    # What the undistributed program would have drawn has been drawn.
    undistributed = generator(1)
    torch.empty_like(image()).normal_(generator=undistributed)
    assert torch.equal(own, torch.rand(2, generator=undistributed))
    assert torch.equal(under_the_mode, torch.rand(2, generator=generator(1)))


def other_generators(ctx: DistributedContext) -> None:
    torch.empty_like(ctx.shard(image())).normal_(generator=generator(ctx.rank))


def other_shapes(ctx: DistributedContext) -> None:
    x = ctx.zeros((1, 1, 8, 8))
    torch.randn_like(x if ctx.rank else x[:, :, 1:])


def other_types(ctx: DistributedContext) -> None:
    torch.randn_like(ctx.zeros((1, 1, 8, 8)), dtype=[torch.float64, torch.float32][ctx.rank])


def other_functions(ctx: DistributedContext) -> None:
    (torch.randn_like if ctx.rank else torch.rand_like)(ctx.zeros((1, 1, 8, 8)))


def other_seeds(ctx: DistributedContext) -> None:
    with CounterRandom(ctx.rank):
        torch.randn_like(ctx.zeros((1, 1, 8, 8)))


def other_order(ctx: DistributedContext) -> None:
    x = ctx.zeros((1, 1, 8, 8))
    with CounterRandom(0):
        if ctx.rank:
            torch.randn(3)
        torch.randn_like(x)


def negative_rate(ctx: DistributedContext) -> None:
    """Below 0 in one shard only."""
    rates = image()
    rates[0, 0, -1, -1] = -1
    torch.poisson(ctx.shard(rates, (2, 1)))


def chance_above_one(ctx: DistributedContext) -> None:
    torch.bernoulli(ctx.shard(image(), (2, 1)) * 1.5)


def into_a_plain_one(ctx: DistributedContext) -> None:
    x = ctx.shard(image())
    torch.empty(2, 3, 13, 9).bernoulli_(x / 2)


def late_difference(ctx: DistributedContext) -> None:
    """The last draw differs: told at the end of the block."""
    x = ctx.zeros((1, 1, 8, 8))
    with CounterRandom(0):
        torch.randn_like(x)
        (torch.randn_like if ctx.rank else torch.rand_like)(x)


def long_difference(ctx: DistributedContext) -> None:
    """One rank draws once more on the way: told within the block."""
    x = ctx.zeros((1, 1, 8, 8))
    with CounterRandom(0):
        for _ in range(16):
            torch.randn_like(x)
            if ctx.rank:
                torch.rand(1)
        ctx.barrier()
        raise AssertionError("not told within the block")


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        (other_generators, DisagreementError, "generator given.* Seed it with the same number"),
        (other_shapes, DisagreementError, r"different tensors.*\(1, 1, 7, 8\).*\(1, 1, 8, 8\)"),
        (other_types, DisagreementError, "different tensors.*float64.*float32"),
        (other_functions, RankError, "different places.*rand"),
        (other_seeds, DisagreementError, "draw differently under.*seed 0.*seed 1.*same seed"),
        (other_order, DisagreementError, "draw 0 of seed 0.*draw 1 of seed 0.*same order"),
        (late_difference, DisagreementError, "draw 1 .*rand_like.*draw 1 .*randn_like"),
        (long_difference, DisagreementError, "16 of sharded.*16 in all.*31 in all"),
        (negative_rate, RuntimeError, "poisson expects finite rates >= 0"),
        (chance_above_one, RuntimeError, r"chances in \[0, 1\]"),
        (into_a_plain_one, LayoutError, "replicated tensor with sharded chances"),
    ],
)
def test_errors(
    pool: WorkerPool,
    program: Callable[[DistributedContext], None],
    error: type[Exception],
    words: str,
) -> None:
    failures = pool.run(program, world_size=2, expect_error=True)
    assert_every_rank_raised(failures, error, words)


# -- gradients -------------------------------------------------------------------------------------


def gradients(ctx: DistributedContext) -> None:
    """Of noise added, of counts of an image (zero), and of what was overwritten (zero)."""

    def programs(x: Tensor) -> list[Tensor]:
        level = x * 2
        added = ((x + torch.randn_like(x) * level) ** 2).sum()
        counts = (torch.poisson(x * 5) + x**2).sum()
        only_counts = torch.poisson(x * 5).sum()
        overwritten = ((x * 3).normal_() + x).pow(2).sum()
        shifted = torch.normal(x, 0.1).sum()
        return [added, counts, only_counts, overwritten, shifted]

    x = image()
    for mesh in meshes(ctx, 2):
        both = []
        for leaf in (x.clone().requires_grad_(), ctx.shard(x, mesh).requires_grad_()):
            with CounterRandom(2):
                losses = programs(leaf)
            grads = [torch.autograd.grad(loss, leaf)[0] for loss in losses]
            both.append([*losses, *(ctx.gather(grad) for grad in grads)])
        assert_close(both[1], both[0], 1e-12, f"mesh {mesh}, ")
        assert float(both[0][7].abs().max()) == 0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gradients(pool: WorkerPool, world_size: int) -> None:
    pool.run(gradients, world_size=world_size)


def test_a_leaf_is_not_overwritten() -> None:
    with CounterRandom(0), pytest.raises(RuntimeError, match="leaf"):
        torch.zeros(3, requires_grad=True).normal_()
    with CounterRandom(0), torch.no_grad():
        weight = torch.zeros(3, requires_grad=True).normal_()
    assert weight.is_leaf
    assert bool((weight != 0).all())


# -- plain tensors ---------------------------------------------------------------------------------


def under(seed: int, draw: Callable[[], Any]) -> Any:
    with CounterRandom(seed):
        return draw()


def test_sizes_are_given_as_torch_takes_them() -> None:
    same = [
        lambda: torch.randn(2, 3),
        lambda: torch.randn((2, 3)),
        lambda: torch.randn(size=(2, 3)),
        lambda: torch.randn(torch.Size([2, 3]), generator=None, device="cpu"),
        lambda: torch.normal(0.0, 1.0, (2, 3)),
        lambda: torch.normal(mean=0.0, std=1.0, size=(2, 3)),
        lambda: torch.empty(2, 3).normal_(),
        lambda: torch.randn(2, 3, out=torch.empty(2, 3)),
        lambda: torch.randn(2, 3, requires_grad=True).detach(),
    ]
    for draw in same:
        assert torch.equal(under(3, draw), under(3, same[0]))
    assert under(3, lambda: torch.randn(())).shape == ()
    assert under(3, lambda: torch.rand(4, dtype=torch.float16)).dtype == torch.float16
    assert under(3, lambda: torch.randn(2, requires_grad=True)).requires_grad
    whole = [
        lambda: torch.randint(4, 9, (50,)),
        lambda: torch.randint(low=4, high=9, size=(50,)),
        lambda: torch.randint(4, 9, size=[50]),
        lambda: torch.empty(50, dtype=torch.int64).random_(4, 9),
    ]
    for draw in whole:
        assert torch.equal(under(3, draw), under(3, whole[0]))
    assert under(3, whole[0]).dtype == torch.int64
    assert under(3, whole[0]).unique().tolist() == [4, 5, 6, 7, 8]
    assert under(3, lambda: torch.randint(3, (99,))).unique().tolist() == [0, 1, 2]


def test_permutation() -> None:
    order = under(1, lambda: torch.randperm(100))
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(100))
    assert order.tolist() != list(range(100))


def test_generators_are_seeds() -> None:
    """A generator decides its draws, whatever the mode's seed; and only its own."""

    def draw() -> list[Tensor]:
        own = generator(8)
        return [torch.randn(3, generator=own), torch.randn(3, generator=own), torch.randn(3)]

    first, second = under(1, draw), under(2, draw)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[2], second[2])
    assert torch.equal(first[2], under(1, lambda: torch.randn(3)))


def test_modes_within_one_another_keep_their_sequences() -> None:
    with CounterRandom(1):
        first = torch.randn(3)
        with CounterRandom(2):
            inner = torch.randn(3)
        second = torch.randn(3)
    assert torch.equal(inner, under(2, lambda: torch.randn(3)))
    pair = under(1, lambda: [torch.randn(3), torch.randn(3)])
    assert torch.equal(torch.stack([first, second]), torch.stack(pair))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.multinomial(x, 1),
        lambda x: x.cauchy_(),
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.nn.Dropout(0.5)(x),
        lambda x: F.rrelu(x, training=True),
        lambda x: torch.nn.init.normal_(x),
        lambda x: torch.distributions.Dirichlet(x).sample(),
    ],
)
def test_other_random_functions_are_refused(draw: Random) -> None:
    with CounterRandom(0), pytest.raises(UnsupportedOperation, match="does not draw by position"):
        draw(torch.ones(2, 3))


def test_what_is_not_random_passes() -> None:
    x = torch.linspace(-1, 1, 6)
    with CounterRandom(0):
        assert torch.equal(F.dropout(x, 0.5, training=False), x)
        assert torch.equal(torch.nn.Dropout(0.5).eval()(x), x)
        assert F.rrelu(x).shape == x.shape
        assert torch.equal(torch.zeros_like(x) + x, x)
