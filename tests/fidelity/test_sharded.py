"""Fidelities of a sharded image: by operator, by space, and of a single operator by space."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from deepinv.optim.data_fidelity import L1, L2, DataFidelity, IndicatorL2, PoissonLikelihood
from deepinv.physics import Blur, Inpainting, Physics
from deepinv.sampling import DPSDataFidelity

from shardinv import DistributedContext, distribute
from shardinv.tensor import ShardedTensor
from tests.fidelity.test_sampling import Smooth
from tests.harness import WORLD_SIZES, WorkerPool, assert_close
from tests.physics.stacks import IMAGE, kernel, linear_operators, positive_image, quiet

ROUNDING = 1e-11


class Fourth(DataFidelity):
    """A fidelity of a user's own, with a weight that is trained."""

    def __init__(self) -> None:
        super().__init__(d=lambda u, y: self.weight * (u - y).pow(4).flatten(1).sum(1))
        self.weight = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))


def local_operators() -> list[Physics]:
    mask = (torch.rand(IMAGE, generator=torch.Generator().manual_seed(3)) > 0.5).double()
    with quiet():
        return [
            Blur(filter=kernel(2), padding="circular"),
            Blur(filter=kernel(4), padding="valid"),
            Inpainting(img_size=IMAGE, mask=mask),
            Blur(filter=kernel(5, 4), padding="reflect"),
        ]


def global_operators() -> list[Physics]:
    return list(linear_operators(4))


FIDELITIES = {
    "L2": lambda: L2(sigma=0.7),
    "L1": L1,
    "Poisson": lambda: PoissonLikelihood(gain=0.5, bkg=0.1, denormalize=False),
    "own": Fourth,
}


def gathered(x: Any) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, ShardedTensor) else x


def compare(ctx: DistributedContext, kind: str) -> None:
    operators = {"global": global_operators, "local": local_operators}[kind]
    x = positive_image()
    with quiet():
        alone = distribute(operators(), DistributedContext(), strategy="operator")
        ours = distribute(operators(), ctx)
    y = alone.A(positive_image(1))
    sharded_y = {"full": y}
    sharded = ctx.shard(x)
    if kind == "local":
        sharded_y["sharded"] = ours.A(ctx.shard(positive_image(1)))
    else:
        sharded_y["owned"] = ours.own(y)
    for name, make in FIDELITIES.items():
        if name == "Poisson" and kind == "global":
            continue  # it needs positive predictions
        reference = distribute(make(), DistributedContext())
        fidelity = distribute(make(), ctx)
        plain = x.clone().requires_grad_()
        weights, own_weights = list(reference.parameters()), list(fidelity.parameters())
        value = reference.fn(plain, y, alone)
        slope = reference.grad(plain, y, alone)
        back = torch.autograd.grad(slope.pow(3).sum() + value.sum(), [plain, *weights])
        for form, measured in sharded_y.items():
            case = f"{kind}, {name}, {form}"
            at = ctx.shard(x).requires_grad_()
            found = fidelity.fn(at, measured, ours)
            assert_close(found, value, ROUNDING, f"value, {case}")
            grad = fidelity.grad(at, measured, ours)
            assert isinstance(grad, ShardedTensor)
            assert_close(grad.full_tensor(), slope, ROUNDING, f"gradient, {case}")
            loss = grad.pow(3).sum() + found.sum()
            ours_back = torch.autograd.grad(loss, [at, *own_weights])
            assert_close(
                [gathered(g) for g in ours_back], list(back), ROUNDING, f"backward, {case}"
            )
    for name, term in {"L2": L2(sigma=0.7), "L1": L1(), "ball": IndicatorL2(radius=0.1)}.items():
        options = {} if name == "L2" else {"stepsize": 0.05, "max_iter": 6}
        with torch.no_grad(), quiet():
            near = distribute(term, DistributedContext()).prox(x, y, alone, gamma=0.3, **options)
            for form, measured in sharded_y.items():
                found = distribute(term, ctx).prox(sharded, measured, ours, gamma=0.3, **options)
                assert_close(found.full_tensor(), near, 1e-9, f"prox, {kind}, {name}, {form}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("kind", ["global", "local"])
def test_as_undistributed(pool: WorkerPool, kind: str, world_size: int) -> None:
    pool.run(compare, kind, world_size=world_size)


class Own(DataFidelity):
    """A fidelity that applies the operator by itself."""

    def fn(self, x: Any, y: Any, physics: Any, *args: Any, **kwargs: Any) -> Any:
        return (physics.A(x) - y).pow(4).flatten(1).sum(1)

    def grad(self, x: Any, y: Any, physics: Any, *args: Any, **kwargs: Any) -> Any:
        return physics.A_adjoint(4 * (physics.A(x) - y).pow(3))


def answer_in_kind(ctx: DistributedContext) -> None:
    x, truth = positive_image(), positive_image(1)
    with quiet():
        alone = distribute(local_operators(), DistributedContext(), strategy="operator")
        ours = distribute(local_operators(), ctx, strategy="space")
    y = alone.A(truth)
    for make in (Own, L2):
        reference, fidelity = distribute(make(), DistributedContext()), distribute(make(), ctx)
        for at in (x, ctx.shard(x)):
            for measured in (y, ours.A(ctx.shard(truth))):
                case = f"{make.__name__}, {type(at).__name__}, {type(measured[0]).__name__}"
                value = fidelity.fn(at, measured, ours)
                assert_close(value, reference.fn(x, y, alone), ROUNDING, f"value, {case}")
                slope = fidelity.grad(at, measured, ours)
                assert isinstance(slope, ShardedTensor) is isinstance(at, ShardedTensor), case
                expected = reference.grad(x, y, alone)
                assert_close(gathered(slope), expected, ROUNDING, f"gradient, {case}")


@pytest.mark.parametrize("world_size", (1, 3))
def test_by_space_either_layout_is_answered_in_kind(pool: WorkerPool, world_size: int) -> None:
    pool.run(answer_in_kind, world_size=world_size)


def compare_guidance(ctx: DistributedContext) -> None:
    for operators in (global_operators, local_operators):
        with quiet():
            alone = distribute(
                operators(), DistributedContext(), strategy="operator", dtype=torch.float32
            )
            ours = distribute(operators(), ctx, dtype=torch.float32)
        y = alone.A(positive_image(1).float())
        x = positive_image().float()
        for guidance in ("norm", "annealed"):
            torch.manual_seed(0)
            term = DPSDataFidelity(denoiser=Smooth(), guidance=guidance)
            reference = distribute(term, DistributedContext()).grad(x, y, alone, 0.2)
            torch.manual_seed(0)
            network = distribute(Smooth(), ctx, patch_size=4, overlap=3)
            term = DPSDataFidelity(denoiser=network, guidance=guidance)
            found = distribute(term, ctx).grad(ctx.shard(x), y, ours, 0.2)
            assert_close(found.full_tensor(), reference, 1e-5, f"{operators.__name__}, {guidance}")


@pytest.mark.parametrize("world_size", (1, 3))
def test_guidance_through_the_network(pool: WorkerPool, world_size: int) -> None:
    pool.run(compare_guidance, world_size=world_size)


def messages(ctx: DistributedContext) -> tuple[dict[str, tuple[int, int]], int]:
    """What a gradient of a large image sends, by operation; and the image's bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operators = [Blur(filter=kernel(n, 5).float(), padding="circular") for n in range(3)]
        physics = distribute(operators, ctx)
        fidelity = distribute(L2(), ctx)
    x = ctx.zeros((1, 1, 64, 64))
    y = physics.A(x)
    fidelity.grad(x, y, physics)
    ctx.ledger.reset()
    fidelity.grad(x, y, physics)
    return {e.operation: (e.calls, e.bytes_sent) for e in ctx.ledger.entries()}, 64 * 64 * 4


def test_one_halo_out_and_one_back(pool: WorkerPool) -> None:
    for sent, _ in pool.run(messages, world_size=4):
        # A quarter has two neighbours on each axis where the image wraps around: twice 2 px of a
        # side of 32, and 4 corners of 2 × 2.
        halo = 4 * (4 * 2 * 32 + 4 * 2 * 2)
        assert sent == {"halo": (2, 2 * halo)}
