"""Unrolled solvers of ``deepinv.optim``: the undistributed output and gradients on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.models import DnCNN
from deepinv.optim import ADMM, DRS, FISTA, GD, HQS, MD, MLEM, OSEM, PDCP, PGD, PMD
from deepinv.optim.bregman import Bregman
from deepinv.optim.data_fidelity import L2, PoissonLikelihood, StackedPhysicsDataFidelity
from deepinv.optim.prior import RED, PnP, Tikhonov, TVPrior
from deepinv.physics import Blur, StackedLinearPhysics
from torch import nn

from shardinv import DistributedDataFidelity, DistributedProcessing, distribute
from shardinv.context import DistributedContext
from shardinv.tensor import ShardedTensor
from tests.fidelity.test_solvers import Smooth
from tests.harness import (
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
)
from tests.physics.stacks import Dense, Spectrum, image, kernel, quiet, random_like

TILES = {"patch_size": 4, "overlap": 2}


def operators() -> list[Any]:
    return [Dense(25, seed=31), Spectrum(seed=32), Dense(20, seed=33)]


def blur(seed: int = 5) -> Blur:
    with quiet():
        # Some steps of a linear solver, differentiated one by one, as a sharded image does.
        return Blur(
            filter=kernel(seed), padding="circular", max_iter=5, implicit_backward_solver=False
        )


class Weighted(Bregman):
    """A quadratic potential with a weight for each channel, which is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.3, 0.8]).view(1, 2, 1, 1))

    def fn(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (self.weight * x * x).flatten(1).sum(1)

    def grad(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return self.weight * x

    def grad_conj(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return x / self.weight


def back_projections(y: Any, physics: Any) -> Any:
    x = physics.A_adjoint(y)
    return {"est": (x, x, 0.5 * x)}


STEPS: dict[str, Any] = {"stepsize": 0.3, "g_param": 0.1, "max_iter": 3, "unfold": True}
TRAINED: dict[str, Any] = {**STEPS, "trainable_params": ["stepsize", "g_param"]}
WITH_LAMBDA = {**STEPS, "lambda_reg": 0.2, "trainable_params": ["stepsize", "g_param", "lambda"]}
EACH = {**TRAINED, "stepsize": [0.3, 0.4], "g_param": [0.1, 0.2], "max_iter": 2}
RELAXED = {**EACH, "beta": 0.8, "trainable_params": ["stepsize", "g_param", "beta"]}
EXPLICIT = {**STEPS, "lambda_reg": 0.2, "trainable_params": ["stepsize", "lambda"]}


def shared_prior(count: int) -> list[PnP]:
    return [PnP(Smooth())] * count


#: From a fidelity and the linear operator of the primal-dual method.
MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "PGD": lambda f, _: PGD(f, PnP(Smooth()), **EACH),
    "a network for each iteration": lambda f, _: PGD(f, [PnP(Smooth()), PnP(Smooth())], **EACH),
    "a prior that iterations share": lambda f, _: PGD(f, shared_prior(2), **EACH),
    "FISTA": lambda f, _: FISTA(f, PnP(Smooth()), **TRAINED),
    "GD": lambda f, _: GD(f, RED(Smooth()), **WITH_LAMBDA),
    "HQS": lambda f, _: HQS(f, PnP(Smooth()), **EACH),
    "ADMM": lambda f, _: ADMM(f, PnP(Smooth()), **RELAXED),
    "DRS": lambda f, _: DRS(f, PnP(Smooth()), **RELAXED),
    "PDCP": lambda f, K: PDCP(
        data_fidelity=f, prior=PnP(Smooth()), K=K.A, K_adjoint=K.A_adjoint, stepsize_dual=0.5,
        custom_init=back_projections, **{**STEPS, "trainable_params": ["stepsize_dual", "beta"]},
    ),
    "MD": lambda f, _: MD(Weighted(), f, RED(Smooth()), **EACH),
    "PMD": lambda f, _: PMD(Weighted(), f, Tikhonov(), **EXPLICIT),
    "total variation": lambda f, _: PGD(f, TVPrior(n_it_max=4), **EXPLICIT),
}  # fmt: skip
CLOSED = ("HQS", "ADMM", "DRS", "PDCP")  # need the fidelity's proximal operator


def whole(x: Any) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, ShardedTensor) else x


def leaves(y: Any, ctx: DistributedContext | None = None) -> Any:
    """Measurements that need a gradient, as the one operator or the stack takes them."""
    if not isinstance(y, torch.Tensor):
        return type(y)([leaves(y[i], ctx) for i in range(len(y))])
    return (y.clone() if ctx is None else ctx.shard(y)).requires_grad_()


def tensors(y: Any) -> list[torch.Tensor]:
    return [y] if isinstance(y, torch.Tensor) else [y[i] for i in range(len(y))]


def outcome(model: Any, y: Any, physics: Any, target: torch.Tensor) -> dict[str, Any]:
    """Output, gradient of the measurements, gradients of the parameters."""
    model.zero_grad()
    with quiet():
        x = model(y, physics)
    (x - target).square().sum().backward()
    slopes = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, slope in slopes.items() if slope is None or not slope.any()]
    assert not missing, f"no gradient of {missing}"
    return {
        "output": whole(x).detach(),
        "measurements": [whole(entry.grad) for entry in tensors(y)],
        "parameters": slopes,
    }


def compare(ctx: DistributedContext, tiles: dict[str, int], sharded: bool) -> list[Any]:
    """All solvers: an image on every rank and dealt operators, or sharded and one by space."""
    x, K = image(0), blur(6)
    physics: Any = blur() if sharded else StackedLinearPhysics(operators())
    with quiet():
        ours = distribute(blur() if sharded else operators(), ctx)
    our_K = distribute(blur(6), ctx) if sharded else K
    y = random_like(physics.A(x))
    found = []
    for name, make in MODELS.items():
        listed = not sharded and name not in CLOSED
        fidelity = StackedPhysicsDataFidelity([L2(sigma=0.8)] * 3) if listed else L2(sigma=0.8)
        reference = make(fidelity, K).double()
        model = make(L2(sigma=0.8), our_K).double()
        keys = list(model.state_dict())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * ctx.rank  # rank 0's are given to all
        ctx.ledger.reset()
        assert distribute(model, ctx, **({} if "variation" in name else tiles)) is model
        check_kind(model, name)
        assert list(model.state_dict()) == keys == list(reference.state_dict())
        theirs = outcome(reference, leaves(y), physics, x)
        mine = outcome(
            model, leaves(y, ctx) if sharded else leaves(y), ours, x_like(x, ctx, sharded)
        )
        assert_close(mine, theirs, 1e-9, name)
        found.append(mine)
    return found


def x_like(x: torch.Tensor, ctx: DistributedContext, sharded: bool) -> torch.Tensor:
    return ctx.shard(x) if sharded else x


def check_kind(model: Any, name: str) -> None:
    assert all(isinstance(term, DistributedDataFidelity) for term in model.data_fidelity)
    if name not in ("PMD", "total variation"):
        assert all(isinstance(prior.denoiser, DistributedProcessing) for prior in model.prior)
    if "share" in name:
        assert model.prior[0] is model.prior[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_output_and_gradients(pool: WorkerPool, world_size: int) -> None:
    for sharded in (False, True):
        tiles = TILES if world_size != 3 else {}  # one tile: two ranks have none
        assert_same_on_every_rank(pool.run(compare, tiles, sharded, world_size=world_size))


def expectation_maximisation(ctx: DistributedContext) -> list[Any]:
    """MLEM of one operator and OSEM of several, by space: a rank has its part of all of them."""
    x = image(0).abs() + 0.1
    options = {"max_iter": 2, "g_param": 0.1, "lambda_reg": 0.05, "unfold": True}
    found = []
    for make, count in ((MLEM, 1), (OSEM, 2)):
        parts = [blur(seed) for seed in range(5, 5 + count)]
        with quiet():
            again = [blur(seed) for seed in range(5, 5 + count)]
            ours = distribute(again if count > 1 else again[0], ctx, strategy="space")
        physics: Any = StackedLinearPhysics(parts) if count > 1 else parts[0]
        y = physics.A(x)

        def solver(fidelity: Any, make: Any = make) -> Any:
            prior = RED(Smooth())
            return make(fidelity, prior, trainable_params=["lambda"], **options).double()

        terms = [PoissonLikelihood(denormalize=False) for _ in range(count)]
        reference = solver(StackedPhysicsDataFidelity(terms) if count > 1 else terms[0])
        theirs = outcome(reference, leaves(y), physics, x)
        for sharded in (False, True):
            model = distribute(solver(PoissonLikelihood(denormalize=False)), ctx, **TILES)
            data = leaves(y, ctx) if sharded else leaves(y)
            mine = outcome(model, data, ours, x_like(x, ctx, sharded))
            assert_close(mine, theirs, 1e-9, f"{make.__name__}, sharded: {sharded}")
            found.append(mine)
    return found


def test_expectation_maximisation(pool: WorkerPool) -> None:
    assert_same_on_every_rank(pool.run(expectation_maximisation, world_size=2))


class Learned(nn.Module):
    """An unrolled method of a user's own, whose blocks are distributed one by one."""

    def __init__(self, fidelity: Any, priors: list[Any]) -> None:
        super().__init__()
        self.fidelity = fidelity
        self.priors = nn.ModuleList(priors)
        self.steps = nn.Parameter(torch.tensor([0.4, 0.3], dtype=torch.float64))
        self.mix = nn.Conv2d(2, 2, 1, dtype=torch.float64)  # runs on every rank alike

    def forward(self, y: Any, physics: Any) -> torch.Tensor:
        x = physics.A_adjoint(y)
        for step, prior in zip(self.steps, self.priors, strict=True):
            x = x - step * self.fidelity.grad(x, y, physics)
            x = prior.prox(self.mix(x), 0.1 + step, gamma=1.0)
        return x


class Residual(nn.Module):
    """A network that is no denoiser of DeepInverse."""

    def __init__(self, layers: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        net = DnCNN(2, 2, depth=layers, nf=4, pretrained=None)
        self.net = net.to(dtype)

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return 0.8 * x + 0.2 * self.net(x)


def own_module(ctx: DistributedContext) -> list[Any]:
    physics, x = blur(), image(0)
    with quiet():
        ours = distribute(blur(), ctx)
    y = random_like(physics.A(x))
    torch.manual_seed(4)
    reference = Learned(L2(), [PnP(Smooth()), PnP(Residual(2))])
    priors = [distribute(PnP(net), ctx, **TILES) for net in (Smooth(), Residual(2))]
    model = Learned(distribute(L2(), ctx), priors)
    model.load_state_dict(reference.state_dict())
    theirs = outcome(reference, leaves(y), physics, x)
    found = []
    for sharded in (False, True):
        data = leaves(y, ctx) if sharded else leaves(y)
        mine = outcome(model, data, ours, x_like(x, ctx, sharded))
        assert_close(mine, theirs, 1e-9, f"sharded: {sharded}")
        found.append(mine)
    return found


def test_a_module_of_ones_own(pool: WorkerPool) -> None:
    assert_same_on_every_rank(pool.run(own_module, world_size=2))


def train(ctx: DistributedContext, sharded: bool) -> dict[str, torch.Tensor]:
    """Five steps of Adam from weights that differ: rank 0's, and together from then on."""
    with quiet():
        physics, ours = blur().float(), distribute(blur().float(), ctx)
    x = image(0, dtype=torch.float32)
    y = random_like(physics.A(x))
    reference = MODELS["PGD"](L2(), None).float()
    model = MODELS["PGD"](L2(), None).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * ctx.rank
    distribute(model, ctx, **TILES)
    target, data = x_like(x, ctx, sharded), x_like(y, ctx, sharded)
    for stack, net, measured, wanted in ((physics, reference, y, x), (ours, model, data, target)):
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            (net(measured, stack) - wanted).square().mean().backward()
            optimizer.step()
    mine = {name: p.detach() for name, p in model.named_parameters()}
    assert_close(mine, {n: p.detach() for n, p in reference.named_parameters()}, 1e-5)
    return mine


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_five_steps_of_training(pool: WorkerPool, world_size: int) -> None:
    for sharded in (False, True):
        assert_same_on_every_rank(pool.run(train, sharded, world_size=world_size))


def messages_of_a_step(ctx: DistributedContext, layers: int, sharded: bool) -> dict[str, int]:
    """How often each operation is called in a training step, by block."""
    ours = distribute(blur() if sharded else operators(), ctx)
    x = image(0)
    model = PGD(L2(), PnP(Residual(layers)), **EACH).double()
    before = len(list(model.parameters()))
    ctx.ledger.reset()
    distribute(model, ctx, **TILES)
    setting_up = {entry.block: entry.calls for entry in ctx.ledger.entries()}
    assert setting_up == {"denoiser": 1, "parameters": 1}, setting_up  # not one a parameter
    assert len(list(model.parameters())) == before
    target = x_like(x, ctx, sharded)
    y = ours.A(target)
    for _ in range(2):  # kinds and shapes are agreed in the first
        model.zero_grad()
        ctx.ledger.reset()
        (model(y, ours) - target).square().sum().backward()
    return {f"{e.block}: {e.operation}": e.calls for e in ctx.ledger.entries()}


def test_messages_of_a_step_do_not_grow_with_the_network(pool: WorkerPool) -> None:
    for sharded in (False, True):
        small, large = (
            pool.run(messages_of_a_step, layers, sharded, world_size=2) for layers in (2, 12)
        )
        assert small[0] == small[1] == large[0] == large[1]
        # Two iterations: the image or its noise level each, and all weights together once.
        assert small[0]["denoiser (backward): all_reduce"] <= 3, small[0]


def not_unfolded(ctx: DistributedContext) -> None:
    model = PGD(data_fidelity=L2(), prior=PnP(Smooth()), max_iter=2)
    distribute(model, ctx, type_object="module")


def no_solver(ctx: DistributedContext) -> None:
    distribute(Smooth(), ctx, type_object="module")


@pytest.mark.parametrize(
    ("function", "message"),
    [(not_unfolded, "unfold=False.*unfold=True"), (no_solver, "solvers of deepinv.optim")],
)
def test_what_is_refused(pool: WorkerPool, function: Callable[..., None], message: str) -> None:
    assert_every_rank_raised(pool.run(function, expect_error=True), TypeError, message)
