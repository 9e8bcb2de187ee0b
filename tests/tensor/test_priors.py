"""Explicit priors on sharded images: of pixels, neighbours, wavelets; those of patches refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from deepinv.models import TGVDenoiser, TVDenoiser, WaveletDenoiser
from deepinv.optim import (
    L1Prior,
    L12Prior,
    PatchPrior,
    Prior,
    Tikhonov,
    TVPrior,
    WaveletPrior,
)
from deepinv.optim.prior import RDP, SmoothedTVPrior, TVL1Prior

from shardinv import DistributedContext
from shardinv.denoise.neighbours import (
    gradient,
    gradient_adjoint,
    jacobian,
    jacobian_adjoint,
    model_on_shards,
    prior_on_shards,
)
from shardinv.tensor import UnsupportedOperation
from tests.harness import WORLD_SIZES, WorkerPool, assert_every_rank_raised
from tests.tensor.compare import compare, meshes, run_cases

PLANE, THIN, VOLUME = (11, 9), (2, 3), (5, 4, 6)


def differences(ctx: DistributedContext) -> None:
    """Differences and their adjoints, with gradients of both orders."""
    cases = []
    for spatial in (PLANE, THIN, VOLUME):
        x = torch.randn(2, 2, *spatial, dtype=torch.float64)
        n = len(spatial)

        def chain(x: torch.Tensor, sharded: bool = True) -> list[torch.Tensor]:
            if type(x) is torch.Tensor:
                d, dt, e, et = (
                    TVDenoiser.nabla,
                    TVDenoiser.nabla_adjoint,
                    TGVDenoiser.epsilon,
                    TGVDenoiser.epsilon_adjoint,
                )
            else:
                d, dt, e, et = gradient, gradient_adjoint, jacobian, jacobian_adjoint
            v = d(x) ** 2
            g = e(v) * v.sum()
            return [v, dt(v.sin()), g, et(g * g)]

        cases += [
            (f"{spatial}", partial(compare, ctx, f"{spatial}", chain, x, mesh=mesh))
            for mesh in meshes(ctx.world_size, n)
        ]
    run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_differences(pool: WorkerPool, world_size: int) -> None:
    pool.run(differences, world_size=world_size)


def on_both(prior: Callable[[], Prior], use: Callable[[Prior, Any], Any]) -> Callable[..., Any]:
    """A function of a plain or sharded image: the prior as it is, or its twin."""
    plain, other = prior(), prior_on_shards(prior())

    def function(x: torch.Tensor) -> Any:
        return use(plain if type(x) is torch.Tensor else other, x)

    return function


def pointwise_and_neighbours(ctx: DistributedContext) -> None:
    """fn, grad and prox of every prior."""
    priors: dict[str, Callable[[], Prior]] = {
        "l1": L1Prior,
        "Tikhonov": Tikhonov,
        "l12 of channels": partial(L12Prior, l2_axis=1),
        "TV": partial(TVPrior, n_it_max=12),
        "TV l1": partial(TVL1Prior, n_it_max=12),
        "smoothed TV": SmoothedTVPrior,
        "RDP": RDP,
    }
    cases = []
    for spatial in (PLANE, THIN, VOLUME):
        x = torch.rand(2, 2, *spatial, dtype=torch.float64) + 0.1
        for name, prior in priors.items():
            uses: dict[str, Callable[[Prior, Any], Any]] = {"fn": lambda p, x: p.fn(x)}
            if name not in ("l1", "l12 of channels"):
                uses["grad"] = lambda p, x: p.grad(x)
            if name == "smoothed TV":
                uses["prox"] = lambda p, x: p.prox(x, gamma=0.2, max_iter_inter=5)
            elif name != "RDP":
                # Twice: the second starts where the first ended.
                uses["prox"] = lambda p, x: p.prox(p.prox(x, gamma=0.2) + x, gamma=0.1)
            for use_name, use in uses.items():
                what = f"{name}.{use_name} {spatial}"
                order = 0 if use_name == "prox" and name == "smoothed TV" else 1
                if name.startswith("TV") and use_name == "prox" and spatial != PLANE:
                    order = 0
                for mesh in meshes(ctx.world_size, len(spatial))[-2 if spatial == PLANE else -1 :]:

                    def case(
                        what: str = what,
                        prior: Any = prior,
                        use: Any = use,
                        x: torch.Tensor = x,
                        mesh: Any = mesh,
                        order: int = order,
                    ) -> None:
                        compare(
                            ctx, what, on_both(prior, use), x, mesh=mesh, order=order, rtol=1e-11
                        )

                    cases.append((what, case))
    run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_priors(pool: WorkerPool, world_size: int) -> None:
    pool.run(pointwise_and_neighbours, world_size=world_size, timeout=120)


def generalised_variation(ctx: DistributedContext) -> None:
    """TGV, and a change between layouts, which starts the solver anew."""
    x = torch.rand(2, 2, *PLANE, dtype=torch.float64)
    plain, other = TGVDenoiser(n_it_max=12), model_on_shards(TGVDenoiser(n_it_max=12))
    for mesh in meshes(ctx.world_size, 2):
        plain.restart = True

        def run(x: torch.Tensor) -> torch.Tensor:
            model = plain if type(x) is torch.Tensor else other
            return model(model(x, ths=0.3), ths=torch.tensor([0.1, 0.2], dtype=torch.float64))

        compare(ctx, "TGV", run, x, mesh=mesh, order=0, rtol=1e-11)
        plain.restart = True
        torch.testing.assert_close(other(x, ths=0.3), plain(x, ths=0.3), rtol=1e-12, atol=1e-12)
        plain.restart = True


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_generalised_variation(pool: WorkerPool, world_size: int) -> None:
    pool.run(generalised_variation, world_size=world_size)


def wavelets(ctx: DistributedContext) -> None:
    """Wavelet priors, by the rules of convolutions."""
    cases = []
    for spatial, dim, wavelet in (
        ((24, 18), 2, "db2"),
        ((21, 17), 2, "db4"),
        ((8, 9, 7), 3, "db1"),
    ):
        x = torch.randn(2, 2, *spatial, dtype=torch.float64)
        for mode in ("zero", "reflect", "periodic"):
            for p in (0, 1) if mode == "zero" else (1,):
                make = partial(WaveletPrior, level=2, wv=wavelet, p=p, wvdim=dim, mode=mode)
                for mesh in meshes(ctx.world_size, dim)[-2:]:
                    for name, use in (
                        ("fn", lambda q, x: q.fn(x)),
                        ("prox", lambda q, x: q.prox(x, gamma=0.3)),
                    ):
                        what = f"wavelets {wavelet} {mode} p={p} {name} {spatial}"
                        order = 1 if p == 1 and mode == "zero" else 0

                        def case(
                            what: str = what,
                            make: Any = make,
                            use: Any = use,
                            x: torch.Tensor = x,
                            mesh: Any = mesh,
                            order: int = order,
                        ) -> None:
                            compare(
                                ctx, what, on_both(make, use), x, mesh=mesh, order=order, rtol=1e-11
                            )

                        cases.append((what, case))
    run_cases(ctx, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_wavelets(pool: WorkerPool, world_size: int) -> None:
    pytest.importorskip("ptwt")
    pool.run(wavelets, world_size=world_size, timeout=120)


def traffic(ctx: DistributedContext) -> tuple[int, int]:
    """Bytes and calls of ten iterations of total variation on this rank."""
    x = ctx.shard(torch.rand(1, 3, 64, 32), 2)
    model = model_on_shards(TVDenoiser(n_it_max=10, crit=0.0))
    ctx.ledger.reset()
    model(x, ths=0.1)
    rows = [entry for entry in ctx.ledger.entries() if entry.operation == "halo"]
    assert {entry.operation for entry in ctx.ledger.entries()} == {"halo", "all_reduce"}
    return sum(entry.bytes_sent for entry in rows), sum(entry.calls for entry in rows)


def test_an_iteration_sends_a_row_each_way(pool: WorkerPool) -> None:
    # A row of 3 * 32 floats: the second rank's first for the gradient, the first's last back.
    assert pool.run(traffic, world_size=2) == [(10 * 384, 20), (10 * 384, 20)]


def patches(ctx: DistributedContext) -> Any:
    prior = prior_on_shards(PatchPrior(lambda p: p.sum(-1), n_patches=4))
    return prior.fn(ctx.shard(torch.rand(1, 1, 12, 12)))


@pytest.mark.parametrize("world_size", [1, 2])
def test_patches_are_refused(pool: WorkerPool, world_size: int) -> None:
    outcomes = pool.run(patches, world_size=world_size, expect_error=True)
    assert_every_rank_raised(outcomes, UnsupportedOperation, "PatchPrior draws patches")


def unprepared(ctx: DistributedContext) -> Any:
    return TVPrior().fn(ctx.shard(torch.rand(1, 1, 12, 12)))


def test_a_prior_that_was_not_distributed_says_what_to_do(pool: WorkerPool) -> None:
    outcomes = pool.run(unprepared, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, r"distribute\(prior, ctx\)")


def test_wavelet_models_keep_their_class() -> None:
    pytest.importorskip("ptwt")
    model = WaveletDenoiser(level=2, wv="db2")
    assert isinstance(model_on_shards(model), WaveletDenoiser)
    assert type(model) is WaveletDenoiser
