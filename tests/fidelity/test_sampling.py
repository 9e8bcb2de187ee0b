"""The guidance terms of diffusion samplers on a stack (case 20 of the peer)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from deepinv.models import Denoiser
from deepinv.optim.data_fidelity import StackedPhysicsDataFidelity
from deepinv.physics import GaussianNoise, LinearPhysics, StackedLinearPhysics
from deepinv.sampling import (
    ALDDataFidelity,
    DPSDataFidelity,
    ILVRDataFidelity,
    MomentMatchingDataFidelity,
    PiGDMDataFidelity,
    ScoreSDEDataFidelity,
)

from shardinv import DistributedProcessing, distribute
from shardinv.context import DistributedContext
from tests.harness import (
    WORLD_SIZES,
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
)
from tests.physics.stacks import (
    Dense,
    Spectrum,
    generator,
    image,
    nonlinear_operators,
    random_like,
)

COUNT = 3


class Smooth(Denoiser):
    """A small nonlinear network of float32 weights, the same for every seed."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 2, 3, padding=1)
        self.register_buffer("gain", torch.tensor(0.9 + 0.01 * seed))
        with torch.no_grad():
            for parameter in self.conv.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator(seed)) / 4)

    def forward(self, x: torch.Tensor, sigma: Any = None, **_: Any) -> torch.Tensor:
        level = self._handle_sigma(sigma, reference_tensor=x)
        return self.gain * x + level * torch.tanh(self.conv(x))


def operators(noise: bool = True) -> list[LinearPhysics]:
    made = [Dense(9 + 2 * number, seed=60 + number, dtype=torch.float32) for number in range(COUNT)]
    if noise:
        for number, op in enumerate(made):
            op.set_noise_model(GaussianNoise(0.1 + 0.2 * number))
    return made


def picture(seed: int) -> torch.Tensor:
    return image(seed, dtype=torch.float64).float()


SIGMAS: tuple[Any, ...] = (0.4, torch.tensor([0.2, 0.9]))


def total_guidance(
    x: torch.Tensor, y: list[torch.Tensor], guidance: str, sigma: Any, weight: float,
    clip: tuple[float, float] | None, network: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The value by its formula, of all operators together, and the denoised image."""
    denoised = network(x, sigma)
    if clip is not None:
        denoised = denoised.clip(*clip)
    squares = [(op.A(denoised) - y[i]).square().sum(1) for i, op in enumerate(operators())]
    if guidance == "norm":
        return weight * sum(squares).sqrt(), denoised
    level = torch.as_tensor(sigma)
    noise = [op.noise_model.sigma for op in operators()]
    return weight * sum(s / (2 * (n**2 + level**2)) for s, n in zip(squares, noise)), denoised


def diffusion_posterior(ctx: DistributedContext) -> list[torch.Tensor]:
    ours = distribute(operators(), ctx)
    x, y = picture(0), random_like(ours.A(picture(1)))
    found = []
    for guidance in ("norm", "annealed"):
        for sigma in SIGMAS:
            for clip in (None, (-0.8, 0.9)):
                term = DPSDataFidelity(Smooth(), weight=1.7, clip=clip, guidance=guidance)
                fidelity = distribute(term, ctx)
                leaf = x.clone().requires_grad_()
                value, denoised = total_guidance(
                    leaf, list(y.x), guidance, sigma, 1.7, clip, Smooth()
                )
                (slope,) = torch.autograd.grad(value.sum(), leaf)
                name = f"{guidance}, sigma {sigma}, clip {clip}"
                assert_close(fidelity.fn(x, y, ours, sigma), value, 1e-5, f"value, {name}")
                assert_close(fidelity(x, y, ours, sigma), value, 1e-5, f"value, {name}")
                mine = fidelity.grad(x, y, ours, sigma)
                assert_close(mine, slope, 1e-4, f"gradient, {name}")
                owned = fidelity.grad(x, ours.own(y), ours, sigma)
                assert_close(owned, mine, 1e-6, f"owned, {name}")
                mine, output = fidelity.grad(x, y, ours, sigma, get_model_outputs=True)
                assert_close([mine, output], [slope, denoised], 1e-4, f"outputs, {name}")
                value, output = fidelity.fn(x, y, ours, sigma, get_model_outputs=True)
                assert_close(output, denoised, 1e-6, f"outputs of fn, {name}")
                assert not x.requires_grad
                found.append(mine)
    # On one operator it is DeepInverse's own.
    single = distribute(operators()[1:2], ctx)
    for guidance in ("norm", "annealed"):
        term = DPSDataFidelity(Smooth(), weight=1.7, guidance=guidance)
        theirs = term.grad(x.clone(), y[1], operators()[1], 0.4)
        mine = distribute(copy.deepcopy(term), ctx).grad(x, [y[1]], single, 0.4)
        assert_close(mine, theirs, 1e-5, f"one operator, {guidance}")
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_diffusion_posterior_sampling(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(diffusion_posterior, world_size=world_size))


def with_a_distributed_denoiser(ctx: DistributedContext) -> None:
    """The gradient goes through tiles of a distributed network too."""
    ours = distribute(operators(), ctx)
    x, y = picture(0), random_like(ours.A(picture(1)))
    tiled = distribute(Smooth(), ctx, patch_size=4, overlap=2)
    assert isinstance(tiled, DistributedProcessing)
    fidelity = distribute(DPSDataFidelity(tiled), ctx)
    leaf = x.clone().requires_grad_()
    value, _ = total_guidance(leaf, list(y.x), "norm", 0.4, 1.0, None, Smooth())
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    assert_close(fidelity.grad(x, y, ours, 0.4), slope, 1e-4)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_with_a_distributed_denoiser(pool: WorkerPool, world_size: int) -> None:
    pool.run(with_a_distributed_denoiser, world_size=world_size)


def weights_of_rank_zero(ctx: DistributedContext) -> list[torch.Tensor]:
    """Networks that were initialised differently have rank 0's weights and buffers afterwards."""
    term = DPSDataFidelity(Smooth(seed=ctx.rank))
    fidelity = distribute(term, ctx)
    assert list(fidelity.state_dict()) == list(term.state_dict())
    assert fidelity.denoiser is term.denoiser
    assert_close(fidelity.state_dict(), DPSDataFidelity(Smooth(0)).state_dict(), 0.0)
    ours = distribute(operators(), ctx)
    y = random_like(ours.A(picture(1)))
    gradient = fidelity.grad(picture(0), y, ours, 0.4)
    # A network given later is the term's as well.
    fidelity.denoiser = Smooth(seed=5)
    assert term.denoiser is fidelity.denoiser
    assert not torch.equal(fidelity.grad(picture(0), y, ours, 0.4), gradient)
    bare = DPSDataFidelity(weight=3.0)
    later = distribute(bare, ctx)
    assert (later.denoiser, later.weight, later.guidance) == (None, 3.0, "norm")
    later.denoiser = Smooth()
    assert bare.denoiser is later.denoiser
    assert_close(later.grad(picture(0), y, ours, 0.4), 3 * gradient, 1e-5)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = later.no_such_thing
    listed = [DPSDataFidelity(Smooth(seed=ctx.rank + n)) for n in range(COUNT)]
    distribute(listed, ctx)
    assert_close(listed[2].state_dict(), DPSDataFidelity(Smooth(2)).state_dict(), 0.0)
    return [gradient]


@pytest.mark.parametrize("world_size", (1, 3))
def test_the_network_has_rank_zeros_weights(pool: WorkerPool, world_size: int) -> None:
    assert_same_on_every_rank(pool.run(weights_of_rank_zero, world_size=world_size))


def network_weights(ctx: DistributedContext) -> None:
    """The guidance's gradient with respect to the network, on every rank."""
    ours = distribute(operators(), ctx)
    x, y = picture(0), random_like(ours.A(picture(1)))
    network, again = Smooth(), Smooth()
    value = distribute(DPSDataFidelity(network), ctx).fn(x, y, ours, 0.4)
    mine = torch.autograd.grad(value.sum(), list(network.parameters()))
    expected, _ = total_guidance(x, list(y.x), "norm", 0.4, 1.0, None, again)
    theirs = torch.autograd.grad(expected.sum(), list(again.parameters()))
    assert_close(list(mine), list(theirs), 1e-4)


@pytest.mark.parametrize("world_size", (1, 2, 4))
def test_gradient_of_the_network(pool: WorkerPool, world_size: int) -> None:
    pool.run(network_weights, world_size=world_size)


def annealed_langevin(ctx: DistributedContext) -> None:
    """A sum over operators, so DeepInverse's stacked fidelity is the reference."""
    physics, ours = StackedLinearPhysics(operators()), distribute(operators(), ctx)
    x, y = picture(0), random_like(physics.A(picture(1)))
    for gamma in (None, 0.3, lambda sigma: 2 * sigma):
        term = ALDDataFidelity(gamma=gamma, weight=1.3)
        fidelity = distribute(term, ctx)
        reference = StackedPhysicsDataFidelity([term] * COUNT)
        for sigma in SIGMAS:
            theirs = reference.grad(x, y, physics, sigma)
            assert_close(fidelity.grad(x, y, ours, sigma), theirs, 1e-5, f"gradient, {sigma}")
            value = sum(term(x, y[i], op, sigma) for i, op in enumerate(operators()))
            assert_close(fidelity.fn(x, y, ours, sigma), value, 1e-5, f"value, {sigma}")
            assert_close(fidelity(x, y, ours, sigma), value, 1e-5, f"value, {sigma}")
    listed = [ALDDataFidelity(weight=w) for w in (0.5, 1.0, 2.0)]
    theirs = StackedPhysicsDataFidelity(listed).grad(x, y, physics, 0.4)
    assert_close(distribute(listed, ctx).grad(x, y, ours, 0.4), theirs, 1e-5, "a list")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_annealed_langevin(pool: WorkerPool, world_size: int) -> None:
    pool.run(annealed_langevin, world_size=world_size)


def score_sde(ctx: DistributedContext, source: str) -> list[torch.Tensor]:
    """Terms that noise the measurements draw the same for any number of ranks."""
    ours = distribute(operators(), ctx)
    x, y = picture(0), random_like(ours.A(picture(1)))
    torch.manual_seed(3)
    rng = generator(4) if source == "generator" else None
    if source == "factory":
        fidelity = distribute(
            lambda *_: ScoreSDEDataFidelity(weight=1.3),
            ctx, type_object="data_fidelity", num_operators=COUNT,
        )  # fmt: skip
    elif source == "list":
        fidelity = distribute([ScoreSDEDataFidelity(weight=1.3) for _ in range(COUNT)], ctx)
    else:
        fidelity = distribute(ScoreSDEDataFidelity(weight=1.3, rng=rng), ctx)
    return [
        fidelity.grad(x, y, ours, 0.4),
        fidelity.grad(x, ours.own(y), ours, 0.4),
        torch.rand(2),
    ]


@pytest.mark.parametrize("source", ["default", "generator", "list", "factory"])
def test_score_sde(pool: WorkerPool, source: str) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(score_sde, source, world_size=size)]
    for result in results[1:]:
        assert_close(result, results[0], 1e-6)
    first, second, _ = results[0]
    assert (first - second).norm() > 1e-2 * first.norm()


def score_sde_statistics(ctx: DistributedContext) -> None:
    """Its mean is the gradient without noise; its spread is that of the noised measurements."""
    ours = distribute(operators(), ctx)
    x, y = picture(0), random_like(ours.A(picture(1)))
    fidelity = distribute(ScoreSDEDataFidelity(), ctx)
    draws = torch.stack([fidelity.grad(x, y, ours, 0.4) for _ in range(200)])
    clean = distribute(ALDDataFidelity(), ctx).grad(x, y, ours, 0.4)
    spread = draws.std(0)
    assert ((draws.mean(0) - clean).abs() < 6 * spread / 200**0.5).all()
    variance = sum(
        (0.4 / (op.noise_model.sigma**2 + 0.4**2) * op.matrix).square().sum(0) for op in operators()
    )
    assert abs(spread.square().sum((1, 2, 3)).mean() / variance.sum() - 1) < 0.1


def test_score_sde_statistics(pool: WorkerPool) -> None:
    pool.run(score_sde_statistics, world_size=2)


def iterative_refinement(ctx: DistributedContext) -> list[torch.Tensor]:
    """ILVR takes the pseudo-inverse of the whole stack, not the sum of the operators' own."""
    ours = distribute(operators(), ctx)
    ours.max_iter, ours.tol = 40, 1e-7
    x, y = picture(0), random_like(ours.A(picture(1)))
    torch.manual_seed(3)
    fidelity = distribute(ILVRDataFidelity(weight=1.3), ctx)
    found = fidelity.grad(x, y, ours, 0.4)
    # With next to no noise, it is a plain pseudo-inverse of the weighted residual.
    quiet = distribute(ILVRDataFidelity(gamma=0.4, weight=1.3), ctx).grad(x, y, ours, 1e-9)
    matrix = torch.cat([op.matrix for op in operators()])
    residual = torch.cat(
        [(op.A(x) - y[i]) / (op.noise_model.sigma**2 + 0.4**2) for i, op in enumerate(operators())],
        dim=1,
    )
    exact = 1.3 * torch.linalg.lstsq(matrix.double(), residual.double().mT).solution.mT.view_as(x)
    assert_close(quiet.double(), exact, 1e-3)
    return [found]


def test_iterative_refinement(pool: WorkerPool) -> None:
    results = [r for size in WORLD_SIZES for r in pool.run(iterative_refinement, world_size=size)]
    for result in results[1:]:
        assert_close(result, results[0], 1e-4)


def refuse(ctx: DistributedContext, case: str) -> None:
    ours = distribute(operators(), ctx)
    x, y = picture(0), ours.A(picture(1))
    dps = distribute(DPSDataFidelity(Smooth()), ctx)
    cases = {
        "PiGDM": lambda: distribute(PiGDMDataFidelity(Smooth()), ctx),
        "moments": lambda: distribute([MomentMatchingDataFidelity(Smooth())] * COUNT, ctx),
        "part of a norm": lambda: dps.grad(x, y, ours, 0.4, gather=False),
        "part of a value": lambda: dps.fn(x, y, ours, 0.4, gather=False),
        "mean of a norm": lambda: distribute(DPSDataFidelity(Smooth()), ctx, reduction="mean"),
        "no noise level": lambda: dps.grad(x, y, ours),
        "undistributed": lambda: dps.grad(x, y, StackedLinearPhysics(operators()), 0.4),
        "not linear": lambda: distribute(ILVRDataFidelity(), ctx).grad(
            image(0), [image(0)] * 3, distribute(nonlinear_operators(3), ctx), 0.4
        ),
    }
    cases[case]()


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("PiGDM", NotImplementedError, "PiGDMDataFidelity couples the measurements"),
        ("moments", NotImplementedError, "MomentMatchingDataFidelity couples"),
        ("part of a norm", ValueError, "no sum over operators"),
        ("part of a value", ValueError, "no sum over operators"),
        ("mean of a norm", ValueError, "leave reduction= out"),
        ("no noise level", TypeError, "sigma"),
        ("undistributed", TypeError, "needs a distributed stack"),
        ("not linear", TypeError, "linear operators"),
    ],
)
def test_what_is_refused(pool: WorkerPool, case: str, kind: Any, message: str) -> None:
    outcomes = pool.run(refuse, case, world_size=2, expect_error=True, timeout=20)
    assert_every_rank_raised(outcomes, kind, message)


def complex_measurements(ctx: DistributedContext) -> None:
    made = [Spectrum(seed=1), Dense(9, seed=2), Spectrum(seed=3)]
    ours = distribute(made, ctx)
    x, y = image(0), random_like(StackedLinearPhysics(made).A(image(1)))
    fidelity = distribute(DPSDataFidelity(Smooth()), ctx)
    leaf = x.float().requires_grad_()
    denoised = Smooth()(leaf, 0.4)
    value = sum(
        (op.A(denoised) - y[i]).abs().square().flatten(1).sum(1) for i, op in enumerate(made)
    )
    (slope,) = torch.autograd.grad(value.sqrt().sum(), leaf)
    assert_close(fidelity.grad(x.float(), y, ours, 0.4), slope, 1e-4)


@pytest.mark.parametrize("world_size", (1, 3))
def test_complex_measurements(pool: WorkerPool, world_size: int) -> None:
    pool.run(complex_measurements, world_size=world_size)
