"""What goes wrong elsewhere when an inverse problem is distributed, and the right value here.

Each test is a case that was seen to fail, with its number in the list of 28 that this library was
written against; those of training, and of gradients alone, are tested with training. Here each case
is short and of the size in which it was seen; the tests of the blocks go deeper.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from deepinv.models import DnCNN, DRUNet
from deepinv.optim import L1, L2
from deepinv.optim.data_fidelity import StackedPhysicsDataFidelity
from deepinv.optim.prior import RED, PnP, TVPrior
from deepinv.physics import (
    GaussianNoise,
    Inpainting,
    LinearPhysics,
    Physics,
    StackedLinearPhysics,
    StackedPhysics,
)
from deepinv.sampling import ALDDataFidelity, DPSDataFidelity
from deepinv.utils.tensorlist import TensorList
from torch import Tensor, nn

from shardinv import DistributedContext, distribute
from tests.harness import (
    WorkerPool,
    assert_close,
    assert_same_on_every_rank,
    launch_script,
)

ROUNDING = 1e-12


# -- the problems ----------------------------------------------------------------------------------


def image(height: int = 8, width: int = 8, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, 1, height, width, generator=generator, dtype=torch.float64)


def disjoint_masks(count: int = 4) -> list[Inpainting]:
    """Together they see each pixel of an 8 by 8 image once."""
    masks = []
    for index in range(count):
        mask = torch.zeros(1, 8, 8, dtype=torch.float64)
        mask.view(-1)[index::count] = 1.0
        masks.append(Inpainting((1, 8, 8), mask=mask))
    return masks


class Matrix(LinearPhysics):
    def __init__(self, rows: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer(
            "matrix", torch.randn(rows, 64, generator=generator, dtype=torch.float64) / 8
        )

    def A(self, x: Tensor, **_: Any) -> Tensor:
        return x.flatten(1) @ self.matrix.mT

    def A_adjoint(self, y: Tensor, **_: Any) -> Tensor:
        return (y @ self.matrix).view(-1, 1, 8, 8)


class Fourier(LinearPhysics):
    """Complex measurements of a real image."""

    def A(self, x: Tensor, **_: Any) -> Tensor:
        return torch.fft.fft2(x, norm="ortho")

    def A_adjoint(self, y: Tensor, **_: Any) -> Tensor:
        return torch.fft.ifft2(y, norm="ortho").real


class Saturation(Physics):
    """Not linear."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def A(self, x: Tensor, **_: Any) -> Tensor:
        return torch.tanh(self.gain * x)


class Shrink(nn.Module):
    """A denoiser that takes any type and looks nowhere else."""

    def forward(self, x: Tensor, sigma: float = 0.5) -> Tensor:
        return x * (1 - sigma)


def matrices() -> list[Matrix]:
    return [Matrix(rows, seed) for seed, rows in enumerate((30, 50, 20))]


def stack(operators: list[Any], reduction: str = "sum") -> StackedLinearPhysics:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeepInverse's, of a reduction that is no sum
        return StackedLinearPhysics(operators, reduction=reduction)


def three_measurements(ctx: DistributedContext) -> tuple[Tensor, TensorList, StackedLinearPhysics]:
    """A point, measurements of another image, and the undistributed stack."""
    reference = stack(matrices())
    return image(seed=1), reference.A(image()), reference


def on_every_rank(
    pool: WorkerPool, function: Callable[..., Any], *args: Any, world_size: int = 2
) -> Any:
    """Run a case; all ranks must return the same."""
    results = pool.run(function, *args, world_size=world_size)
    assert_same_on_every_rank(results)
    return results[0]


# -- silently wrong elsewhere ----------------------------------------------------------------------


def case_8(ctx: DistributedContext) -> Tensor:
    return distribute(disjoint_masks(), ctx).compute_sqnorm(image(), verbose=False)


def test_8_norm_of_a_stack(pool: WorkerPool) -> None:
    """Peers: the sum of the operators' norms, 4 for four disjoint masks."""
    assert float(on_every_rank(pool, case_8)) == pytest.approx(1.0, abs=1e-6)


def case_9(ctx: DistributedContext) -> Tensor:
    physics = distribute(disjoint_masks(), ctx)
    solution = physics.A_dagger(physics.A(image()))
    assert_close(solution, image(), 1e-6, "masks that see all")

    _, y, reference = three_measurements(ctx)
    for max_iter in (1, 3):
        mine = distribute(matrices(), ctx).A_dagger(y, max_iter=max_iter)
        assert_close(mine, reference.A_dagger(y, max_iter=max_iter), 1e-9, f"{max_iter} steps")
    return mine


def test_9_pseudo_inverse_of_a_stack(pool: WorkerPool) -> None:
    """Peers: the mean of the operators' own, with an error of 0.75; ``max_iter`` is ignored."""
    on_every_rank(pool, case_9)


def case_10(ctx: DistributedContext) -> None:
    x, y, _ = three_measurements(ctx)
    mean = stack(matrices(), "mean")
    physics = distribute(mean, ctx)
    assert_close(physics.A_adjoint(y), mean.A_adjoint(y), ROUNDING, "adjoint")
    assert_close(physics.A_adjoint_A(x), mean.A_adjoint_A(x), ROUNDING, "normal operator")
    with pytest.raises(TypeError, match="no option patchsize"):
        distribute(DnCNN(depth=3, pretrained=None), ctx, patchsize=8)


def test_10_mean_reduction_and_unknown_options(pool: WorkerPool) -> None:
    """Peers: ``reduction="mean"`` is dropped, and unknown options are swallowed."""
    pool.run(case_10, world_size=2)


def case_11(ctx: DistributedContext) -> list[Tensor]:
    operators = [Matrix(20, seed=5) for _ in range(4)]
    for operator in operators:
        operator.set_noise_model(GaussianNoise(sigma=0.1))
    torch.manual_seed(7)
    physics = distribute(operators, ctx)
    return [noisy - clean for noisy, clean in zip(physics(image()), physics.A(image()))]


def test_11_noise(pool: WorkerPool) -> None:
    """Peers: it depends on the number of ranks, and is the same for operators 0 and 1."""
    alone = on_every_rank(pool, case_11, world_size=1)
    for world_size in (2, 3):
        assert_close(on_every_rank(pool, case_11, world_size=world_size), alone, ROUNDING)
    noise = torch.stack(alone).flatten(1)
    assert float(noise.std()) == pytest.approx(0.1, rel=0.3)
    assert float(torch.corrcoef(noise).triu(1).abs().max()) < 0.75


def case_12(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    x = image(64, 32)
    network = DnCNN(1, 1, depth=4, nf=4, pretrained=None).double()
    deep = DRUNet(1, 1, nc=(4, 4, 4, 4), nb=1, pretrained=None).double().eval()
    with torch.no_grad():
        result = distribute(network, ctx, patch_size=16, overlap=4)(x)
        assert_close(result, network(x), ROUNDING, "DnCNN")
        # The window of each of the two tiles is all that a deep network looks at.
        tiled = distribute(deep, ctx, patch_size=32, overlap=32)(x, 0.1)
        assert_close(tiled, deep(x, 0.1), ROUNDING, "DRUNet")


def test_12_borders_of_the_image(pool: WorkerPool) -> None:
    """Peers: reflected where the network pads with zeros, so the border is wrong by its size."""
    pool.run(case_12, world_size=2)


# -- crashes elsewhere -----------------------------------------------------------------------------


def case_14(ctx: DistributedContext) -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1).double()
    block = distribute(layer, ctx, type_object="denoiser")  # the default tiling
    with torch.no_grad():
        for shape in [(256, 256), (128, 128), (100, 100), (512, 200), (200, 200), (1025, 1025)]:
            x = image(*shape)
            assert_close(block(x), layer(x), ROUNDING, str(shape))
    assert block.schedule((200, 200)).grid.work_multiplier == 1.0
    assert block.schedule((1025, 1025)).grid.work_multiplier < 2.26


def test_14_images_of_any_size(pool: WorkerPool) -> None:
    """Peers: an error at these sizes, nine times the work at 200², 3.5 times at 1025²."""
    pool.run(case_14, world_size=2)


def case_15(ctx: DistributedContext) -> None:
    layer = nn.Conv3d(1, 1, 3, padding=1).double()
    x = torch.rand(1, 1, 8, 48, 48, dtype=torch.float64)
    block = distribute(layer, ctx, patch_size=16, overlap=2)
    with torch.no_grad():
        assert_close(block(x), layer(x), ROUNDING)
    assert block.schedule((8, 48, 48)).grid.work_multiplier < 1.4


def test_15_volume_with_a_thin_axis(pool: WorkerPool) -> None:
    """Peers: an error where an axis is thinner than a tile."""
    pool.run(case_15, world_size=2)


def case_16(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    network = DRUNet(1, 1, nc=(4, 4, 4, 4), nb=1, pretrained=None).double().eval()
    x = torch.rand(2, 1, 64, 32, dtype=torch.float64)
    block = distribute(network, ctx, patch_size=32, overlap=32)
    with torch.no_grad():
        for shape in [(), (2,), (2, 1, 1, 1), (2, 1, 64, 32)]:
            sigma = torch.rand(shape, dtype=torch.float64)
            assert_close(block(x, sigma), network(x, sigma), 1e-6, f"sigma of shape {shape}")


def test_16_noise_levels_as_tensors(pool: WorkerPool) -> None:
    """Peers: an error for all of these, which work in one process."""
    pool.run(case_16, world_size=2)


def case_17(ctx: DistributedContext) -> None:
    for dtype in (torch.complex64, torch.float64):
        x = torch.rand(1, 1, 20, 8).to(dtype)
        block = distribute(Shrink(), ctx, patch_size=10, overlap=2)
        assert_close(block(x), x / 2, 0.0, str(dtype))


def test_17_rank_without_a_tile(pool: WorkerPool) -> None:
    """Peers: the connection breaks, since the idle rank takes the result to be float32."""
    pool.run(case_17, world_size=3)


def case_18(ctx: DistributedContext) -> Tensor:
    operators = [Fourier(), Matrix(20, seed=3)]
    physics, x = distribute(operators, ctx), image(seed=1)
    y = physics.A(image())
    assert [entry.dtype for entry in y] == [torch.complex128, torch.float64]
    assert_close(list(y), [op.A(image()) for op in operators], ROUNDING, "measurements")
    gradient = distribute(L2(), ctx).grad(x, y, physics)
    expected = sum(op.A_adjoint(op.A(x) - op.A(image())) for op in operators)
    assert_close(gradient, expected, ROUNDING, "gradient")
    return gradient


def test_18_real_and_complex_measurements(pool: WorkerPool) -> None:
    """Peers: they cannot be gathered together."""
    on_every_rank(pool, case_18)


def case_19(ctx: DistributedContext) -> list[Tensor]:
    operators = [Saturation(gain) for gain in (0.5, 1.0, 2.0)]
    physics, x = distribute(operators, ctx), image(seed=1)
    y = physics.A(image())
    fidelity = distribute(L2(), ctx)
    value, gradient = fidelity(x, y, physics), fidelity.grad(x, y, physics)
    product = physics.A_vjp(x, y)
    assert_close(value, sum(L2()(x, e, op) for e, op in zip(y, operators)), ROUNDING, "value")
    assert_close(gradient, sum(L2().grad(x, e, op) for e, op in zip(y, operators)), ROUNDING)
    assert_close(product, sum(op.A_vjp(x, e) for e, op in zip(y, operators)), ROUNDING, "vjp")
    return [value, gradient, product]


def test_19_stacks_that_are_not_linear(pool: WorkerPool) -> None:
    """Peers: they have neither a fidelity nor a vector-Jacobian product."""
    on_every_rank(pool, case_19)


def case_20(ctx: DistributedContext) -> list[Tensor]:
    x, y, reference = three_measurements(ctx)
    physics = distribute(matrices(), ctx)
    results = []

    several = [L2(0.5), L2(1.0), L2(2.0)]
    options = {"gamma": 0.1, "stepsize_inter": 0.3, "max_iter_inter": 30, "tol_inter": 1e-9}
    results.append(distribute(several, ctx).prox(x, y, physics, **options))
    expected = StackedPhysicsDataFidelity(several).prox(x, y, reference, **options)
    assert_close(results[-1], expected, 1e-10, "prox of a stacked fidelity")

    annealed = ALDDataFidelity()
    results.append(distribute(annealed, ctx).grad(x, y, physics, 0.1))
    expected = sum(annealed.grad(x, e, op, 0.1) for e, op in zip(y, matrices()))
    assert_close(results[-1], expected, ROUNDING, "score-based annealed Langevin guidance")

    # Diffusion samplers of DeepInverse work in single precision.
    x, y = x.float(), TensorList([entry.float() for entry in y])
    physics = distribute(matrices(), ctx, dtype=torch.float32)
    guidance = DPSDataFidelity(denoiser=Shrink())
    results.append(distribute(guidance, ctx).grad(x, y, physics, 0.1))
    # For a stack it is the norm of all residuals together.
    point = x.clone().requires_grad_()
    denoised = guidance.denoiser(point, 0.1)
    residuals = [op.float().A(denoised) - e for e, op in zip(y, matrices())]
    torch.cat(residuals, 1).norm().backward()
    assert_close(results[-1], point.grad, 1e-5, "diffusion posterior sampling")
    return results


def test_20_fidelities_without_a_distance_and_stacked_prox(pool: WorkerPool) -> None:
    """Peers: an error for noisy fidelities, and for the prox of a stacked one."""
    on_every_rank(pool, case_20)


def case_22(ctx: DistributedContext) -> None:
    torch.manual_seed(0)
    network, x = DnCNN(1, 1, depth=3, nf=2, pretrained=None).double(), image(20, 20)
    keys = list(network.state_dict())
    denoiser = distribute(network, ctx, patch_size=10, overlap=3)
    assert list(denoiser.state_dict()) == keys
    network.load_state_dict(denoiser.state_dict())
    denoiser.load_state_dict(network.state_dict())
    for given in (denoiser, distribute(matrices(), ctx), distribute(L2(), ctx)):
        assert type(deepcopy(given)) is type(given)
    with torch.no_grad():
        assert_close(deepcopy(denoiser)(x), network(x), ROUNDING, "copy")
        pnp = distribute(PnP(network), ctx, patch_size=10, overlap=3)
        red = distribute(RED(network), ctx, patch_size=10, overlap=3)
        tv = distribute(TVPrior(), ctx)
        assert_close(pnp.prox(x, 0.1), network(x), ROUNDING, "PnP")
        assert_close(red.grad(x, 0.1), x - network(x), ROUNDING, "RED")
        assert_close(tv.prox(x, gamma=0.1), TVPrior().prox(x, gamma=0.1), 0.0, "TV")
    for prior, kind in ((pnp, PnP), (red, RED), (tv, TVPrior)):
        assert type(prior) is kind
        assert list(prior.state_dict()) == list(
            kind(network).state_dict() if kind != TVPrior else []
        )


def test_22_copies_checkpoints_and_priors(pool: WorkerPool) -> None:
    """Peers: endless recursion, changed keys, and an error for the priors, though documented."""
    pool.run(case_22, world_size=2)


# -- hangs elsewhere -------------------------------------------------------------------------------

FAILS_ON_RANK_1 = """
    from shardinv import DistributedContext
    with DistributedContext(device_mode="cpu", timeout=60) as ctx:
        if ctx.rank == 1:
            raise ZeroDivisionError("the reason")
        ctx.barrier()
"""


def test_23_exception_on_one_rank() -> None:
    """Peers: the others wait at a barrier on the way out, and the launcher never learns of it."""
    result = launch_script(FAILS_ON_RANK_1, 2, launcher="spawn", timeout=60)
    assert all(code != 0 for code in result.returncodes)
    for text in ("ZeroDivisionError: the reason", "rank 1 failed"):
        assert text in result.stderrs[0], "the rank that waited knows why"
    assert abs(result.ended_at[0] - result.ended_at[1]) < 10


def case_24(ctx: DistributedContext) -> list[Tensor]:
    operators = [Matrix(20, seed=0), Saturation(1.0)]
    physics = distribute(operators, ctx)
    assert isinstance(physics, StackedPhysics)
    assert not isinstance(physics, LinearPhysics)
    y = list(physics.A(image()))
    assert_close(y, [op.A(image()) for op in operators], ROUNDING)
    return y


def test_24_linear_and_other_operators_in_one_list(pool: WorkerPool) -> None:
    """Peers: one rank raises, and the other waits for it."""
    on_every_rank(pool, case_24)


def case_26(ctx: DistributedContext) -> Tensor:
    physics, x = distribute(disjoint_masks(), ctx), image(seed=1)
    y = physics.A(image())
    result = distribute(L1(), ctx).prox(x, y, physics, gamma=0.1)
    # The masks see each pixel once: a soft threshold towards the image that was measured.
    shift = x - image()
    expected = image() + shift.sign() * (shift.abs() - 0.1).clamp(min=0)
    assert_close(result, expected, 1e-4)
    return result


def test_26_prox_of_an_l1_fidelity(pool: WorkerPool) -> None:
    """Peers: rank 0 raises, and rank 1 waits for it."""
    on_every_rank(pool, case_26)
