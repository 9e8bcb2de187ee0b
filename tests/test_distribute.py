"""``distribute``: what it recognises, what options it takes, and what it refuses.

What the results compute is tested with their blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepinv.models import Denoiser
from deepinv.optim import L1, L2, PGD, DataFidelity
from deepinv.optim.data_fidelity import StackedPhysicsDataFidelity
from deepinv.optim.prior import RED, PnP, Prior, TVPrior
from deepinv.physics import (
    Inpainting,
    Physics,
    StackedLinearPhysics,
    StackedPhysics,
)
from torch import nn

from shardinv import DistributedContext, distribute
from shardinv.denoise import DistributedProcessing
from shardinv.fidelity import DistributedDataFidelity
from shardinv.physics import DistributedStackedLinearPhysics, DistributedStackedPhysics
from tests.harness import WorkerPool, assert_every_rank_raised


@pytest.fixture
def ctx() -> Any:
    with DistributedContext(device_mode="cpu") as context:
        yield context


class Halving(Denoiser):
    def forward(self, x: torch.Tensor, sigma: Any = None) -> torch.Tensor:
        return x / 2


class Saturation(Physics):
    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.tanh(x)


def masks(count: int = 3) -> list[Inpainting]:
    return [Inpainting((1, 8, 8), mask=0.5) for _ in range(count)]


def make_mask(index: int, device: torch.device, factory_kwargs: Any) -> Physics:
    return Inpainting((1, 8, 8), mask=0.5, device=device)


def make_fidelity(index: int, device: torch.device, factory_kwargs: Any) -> DataFidelity:
    return [L1(), L2()][index % 2]


def make_denoiser(index: int, device: torch.device, factory_kwargs: Any) -> Denoiser:
    return Halving()


def stacked(reduction: str) -> StackedLinearPhysics:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return StackedLinearPhysics(masks(), reduction=reduction)


def solver(**options: Any) -> PGD:
    return PGD(L2(), PnP(Halving()), stepsize=1.0, sigma_denoiser=0.1, max_iter=2, **options)


# -- recognising -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda: stacked("sum"), (DistributedStackedLinearPhysics, StackedLinearPhysics)),
        (masks, (DistributedStackedLinearPhysics, StackedLinearPhysics)),
        (lambda: tuple(masks()), (DistributedStackedLinearPhysics,)),
        (lambda: [*masks(), Saturation()], (DistributedStackedPhysics, StackedPhysics)),
        (lambda: StackedPhysics([Saturation()]), (DistributedStackedPhysics, StackedPhysics)),
        (L2, (DistributedDataFidelity, DataFidelity)),
        (lambda: [L1(), L2()], (DistributedDataFidelity, DataFidelity)),
        (lambda: StackedPhysicsDataFidelity([L1(), L2()]), (DistributedDataFidelity,)),
        (Halving, (DistributedProcessing, Denoiser)),
        (lambda: PnP(Halving()), (PnP, Prior)),
        (lambda: RED(Halving()), (RED, Prior)),
        (TVPrior, (TVPrior, Prior)),
        (lambda: solver(unfold=True), (PGD,)),
    ],
)
@pytest.mark.parametrize("type_object", ["auto", None])
def test_objects_are_recognised(
    ctx: DistributedContext, make: Callable[[], Any], kinds: tuple[type, ...], type_object: Any
) -> None:
    result = distribute(make(), ctx, type_object=type_object)
    for kind in kinds:
        assert isinstance(result, kind)


def test_linear_only_if_all_are(ctx: DistributedContext) -> None:
    result = distribute([*masks(), Saturation()], ctx)
    assert not isinstance(result, StackedLinearPhysics)


@pytest.mark.parametrize(
    ("make", "type_object", "kind", "options"),
    [
        (lambda: make_mask, "physics", DistributedStackedLinearPhysics, {"num_operators": 3}),
        (lambda: make_mask, "linear_physics", DistributedStackedPhysics, {"num_operators": 3}),
        (lambda: make_fidelity, "data_fidelity", DistributedDataFidelity, {"num_operators": 3}),
        (lambda: make_denoiser, "denoiser", DistributedProcessing, {}),
        (lambda: nn.Conv2d(1, 1, 1), "denoiser", DistributedProcessing, {}),
        (lambda: TVPrior(), "prior", TVPrior, {}),
        (lambda: solver(unfold=True), "module", PGD, {}),
        (lambda: [nn.Parameter(torch.ones(2))], "parameters", list, {}),
    ],
)
def test_objects_are_named(
    ctx: DistributedContext,
    make: Callable[[], Any],
    type_object: str,
    kind: type,
    options: dict[str, Any],
) -> None:
    assert isinstance(distribute(make(), ctx, type_object=type_object, **options), kind)


@pytest.mark.parametrize(
    "options", [{"patch_size": 8}, {"overlap": 2}, {"tiling_dims": 2}, {"max_batch_size": 1}]
)
def test_tile_options_tell_a_network(ctx: DistributedContext, options: dict[str, Any]) -> None:
    assert isinstance(distribute(nn.Conv2d(1, 1, 1), ctx, **options), DistributedProcessing)


def test_solver_is_distributed_in_place(ctx: DistributedContext) -> None:
    given = solver(unfold=True)
    keys = list(given.state_dict())
    result = distribute(given, ctx, patch_size=8, overlap=2)
    assert result is given
    assert isinstance(result.data_fidelity[0], DistributedDataFidelity)
    assert isinstance(result.prior[0].denoiser, DistributedProcessing)
    assert result.prior[0].denoiser.options.patch_size == 8
    assert list(result.state_dict()) == keys


def test_parameters_stay_what_they_are(ctx: DistributedContext) -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert distribute(parameter, ctx) is parameter
    assert distribute([parameter], ctx)[0] is parameter
    several = distribute(nn.Linear(2, 2).parameters(), ctx, type_object="parameters")
    assert len(several) == 2


def test_what_is_distributed_stays(ctx: DistributedContext) -> None:
    for given in (L2(), Halving(), stacked("sum")):
        once = distribute(given, ctx)
        assert distribute(once, ctx) is once


# -- options ---------------------------------------------------------------------------------------

NETWORK = {
    "tiling_strategy": None,
    "tiling_dims": (2, 3),
    "patch_size": 16,
    "overlap": 4,
    "max_batch_size": 2,
    "checkpoint_batches": "never",
    "checkpoint_use_reentrant": False,
    "checkpoint_preserve_rng_state": False,
    "dtype": torch.float64,
    "stride": 2,
}
OPERATORS = {
    "num_operators": 3,
    "factory_kwargs": {"a": 1},
    "reduction": "mean",
    "gather_strategy": "naive",
    "dtype": torch.float64,
    "costs": [1.0, 2.0, 3.0],
}


def test_every_option_of_a_network(ctx: DistributedContext) -> None:
    block = distribute(nn.Conv2d(1, 1, 1), ctx, type_object="denoiser", **NETWORK)
    for name in ("tiling_dims", "patch_size", "overlap", "max_batch_size", "checkpoint_batches"):
        assert getattr(block.options, name) == NETWORK[name]
    assert block.max_batch_size == 2
    assert block.stride == 2
    assert not block.checkpoint_preserve_rng_state
    assert block.weight.dtype == torch.float64
    assert isinstance(distribute(PnP(Halving()), ctx, **NETWORK), PnP)


def test_default_options_of_a_network(ctx: DistributedContext) -> None:
    options = distribute(Halving(), ctx).options
    assert (options.patch_size, options.overlap) == (256, 64)
    assert (options.max_batch_size, options.tiling_dims) == (None, None)
    assert options.checkpoint_batches == "auto"


@pytest.mark.parametrize("strategy", ["naive", "concatenated", "broadcast"])
def test_every_option_of_operators(ctx: DistributedContext, strategy: str) -> None:
    options = {**OPERATORS, "gather_strategy": strategy}
    physics = distribute(make_mask, ctx, type_object="physics", **options)
    assert physics.reduction_name == "mean"
    assert physics.costs == (1.0, 2.0, 3.0)
    assert physics.operators[0].mask.dtype == torch.float64
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # ours does not repeat DeepInverse's warning
        assert distribute(stacked("mean"), ctx).reduction_name == "mean"
    assert distribute(stacked("mean"), ctx, reduction="sum").reduction_name == "sum"


def test_every_option_of_a_fidelity(ctx: DistributedContext) -> None:
    options = {"num_operators": 3, "factory_kwargs": {"a": 1}, "reduction": "mean"}
    fidelity = distribute(make_fidelity, ctx, type_object="data_fidelity", **options)
    assert fidelity.reduction == "mean"
    assert fidelity.terms.count == 3


def test_one_set_of_default_options_for_all_calls(ctx: DistributedContext) -> None:
    defaults = {"num_operators": None, "dtype": torch.float32, "patch_size": 256, "overlap": 64}
    for given in (stacked("sum"), L2(), Halving(), TVPrior()):
        distribute(given, ctx, **defaults)


# -- refusing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (Halving, {"patchsize": 8}, TypeError, "no option patchsize; it has .*patch_size"),
        (L2, {"b": 1, "a": 2}, TypeError, "no option a, b"),
        (L2, {"patch_size": 8}, TypeError, r"patch_size has no meaning for data fidelity \(L2\)"),
        (masks, {"overlap": 8}, TypeError, r"overlap has no meaning for physics \(list\)"),
        (Halving, {"num_operators": 3}, TypeError, "num_operators has no meaning for denoiser"),
        (TVPrior, {"costs": [1.0]}, TypeError, "costs has no meaning for prior"),
        (TVPrior, {"patch_size": 8}, ValueError, "TVPrior has no network to run on tiles"),
        (TVPrior, {"overlap": 0}, ValueError, "TVPrior has no network to run on tiles"),
        (
            lambda: nn.Parameter(torch.ones(1)),
            {"dtype": torch.float64},
            TypeError,
            "dtype has no meaning for parameters.*its options are none",
        ),
        (
            masks,
            {"gather_strategy": "all"},
            ValueError,
            "naive, concatenated, broadcast, got 'all'",
        ),
        (masks, {"reduction": "max"}, ValueError, "'sum', 'mean' or None, got 'max'"),
        (masks, {"num_operators": 4}, ValueError, "num_operators=4, but 3 operators are given"),
        (masks, {"costs": [1.0]}, ValueError, "1 costs are given for 3 operators"),
        (lambda: [L1()], {"num_operators": 2}, ValueError, "num_operators=2, but 1 are given"),
        (Halving, {"patch_size": -1}, ValueError, "patch_size must be .*got -1"),
        (Halving, {"overlap": -1}, ValueError, "overlap must be .*got -1"),
        (Halving, {"max_batch_size": 0}, ValueError, "max_batch_size must be"),
        (Halving, {"checkpoint_batches": "x"}, ValueError, "'auto', 'always' or 'never', got 'x'"),
        (Halving, {"checkpoint_use_reentrant": True}, ValueError, "must be False.*loses gradients"),
        (Halving, {"tiling_strategy": "basic"}, NotImplementedError, "must be None.*patch_size"),
        (
            Halving,
            {"type_object": "network"},
            ValueError,
            "type_object must be one of auto, .*'net",
        ),
        (lambda: nn.Conv2d(1, 1, 1), {}, ValueError, "Cannot auto-detect generic torch.nn.Module"),
        (
            lambda: nn.Conv2d(1, 1, 1),
            {"type_object": "module"},
            TypeError,
            "type_object='module' only supports",
        ),
        (
            lambda: Inpainting((1, 8, 8)),
            {},
            ValueError,
            "a single Inpainting cannot be dealt.*list",
        ),
        (
            lambda: solver(unfold=False),
            {"type_object": "module"},
            TypeError,
            "PGD was built with unfold=False.*unfold=True",
        ),
        (lambda: make_mask, {}, ValueError, "what a factory makes cannot be told.*type_object="),
        (lambda: make_mask, {"type_object": "physics"}, ValueError, "needs num_operators="),
        (lambda: make_fidelity, {"type_object": "data_fidelity"}, ValueError, "num_operators="),
        (lambda: 3.0, {}, ValueError, "cannot distribute a float"),
        (list, {}, ValueError, "cannot distribute a list"),
        (lambda: [*masks(1), L2()], {}, TypeError, "operator 1 is a L2"),
        (lambda: [L2(), *masks(1)], {}, TypeError, "fidelity 1 is a Inpainting"),
        (
            lambda: [*masks(1), Saturation()],
            {"type_object": "linear_physics"},
            ValueError,
            "not all operators are linear",
        ),
        (L2, {"type_object": "physics"}, TypeError, "list of operators or a factory, got a L2"),
        (lambda: masks(1)[0], {"type_object": "data_fidelity"}, TypeError, "a Inpainting"),
        (Halving, {"type_object": "prior"}, TypeError, "needs a Prior, got a Halving"),
        (lambda: 3.0, {"type_object": "denoiser"}, TypeError, "needs a network or .*a float"),
        (lambda: 3.0, {"type_object": "parameters"}, TypeError, "needs a Parameter.*a float"),
        (lambda: [3.0], {"type_object": "parameters"}, TypeError, "Parameter is needed.*a float"),
        (
            lambda: lambda index, device, options: 3.0,
            {"type_object": "denoiser"},
            TypeError,
            "factory made a float, a network is needed",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    ctx: DistributedContext,
    make: Callable[[], Any],
    options: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        distribute(make(), ctx, **options)


def test_context_is_needed() -> None:
    with pytest.raises(TypeError, match=r"ctx must be a shardinv\.DistributedContext, got a str"):
        distribute(L2(), "cpu")


def refused(ctx: DistributedContext, options: dict[str, Any]) -> None:
    distribute(Halving(), ctx, **options)(torch.rand(1, 1, 16, 16))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"patch_size": -1}, ValueError, "patch_size must be"),
        ({"patch_size": (8, 8, 8)}, ValueError, "3 numbers, 2 axes are tiled"),
        ({"patch_size": 8, "overlap": 16}, ValueError, "is as wide as the image"),
        ({"patchsize": 8}, TypeError, "no option patchsize"),
    ],
)
def test_bad_options_are_refused_on_every_rank(
    pool: WorkerPool, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    outcomes = pool.run(refused, options, world_size=3, expect_error=True)
    assert_every_rank_raised(outcomes, error, text)
