"""The peer's names make what ``distribute`` makes, and what they say of tiles is true."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.optim import L2, PGD
from deepinv.optim.prior import PnP
from deepinv.physics import Blur, Physics
from torch import Tensor, nn

import shardinv
from shardinv import DistributedContext, compat, distribute
from tests.harness import WorkerPool, assert_close

IMAGE = (2, 1, 20, 26)


def blur(index: int, device: torch.device, factory_kwargs: Any) -> Physics:
    kernel = torch.rand(1, 1, 3, 3, generator=torch.Generator().manual_seed(index))
    return Blur(filter=kernel.double(), padding="circular", device=device)


class NotLinear(Physics):
    def A(self, x: Tensor, **_: Any) -> Tensor:
        return x**2


def not_linear(index: int, device: torch.device, factory_kwargs: Any) -> Physics:
    return NotLinear()


def convolution(seed: int = 0) -> nn.Conv2d:
    torch.manual_seed(seed)
    return nn.Conv2d(1, 1, 5, padding=2).double()


def image(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)).double()


@pytest.fixture
def ctx() -> Any:
    with DistributedContext(device_mode="cpu") as context:
        yield context


# -- the classes -----------------------------------------------------------------------------------


def by_constructor_and_by_distribute(ctx: DistributedContext) -> list[tuple[Tensor, Tensor]]:
    x = image(*IMAGE)
    direct = compat.DistributedStackedLinearPhysics(ctx, 3, blur, gather_strategy="naive")
    stack = distribute(blur, ctx, num_operators=3, type_object="physics")
    fidelity = compat.DistributedDataFidelity(ctx, data_fidelity=L2(), num_operators=3)
    tiles = {"patch_size": 8, "overlap": 2, "tiling_dims": (2, 3)}
    tiled = compat.DistributedProcessing(
        ctx, convolution(), strategy_kwargs=tiles, max_batch_size=2
    )
    y = stack.A(x)
    pairs = [
        *zip(direct.A(x), y),
        (direct.A_adjoint(y), stack.A_adjoint(y)),
        (fidelity.grad(x, y, direct), distribute(L2(), ctx).grad(x, y, stack)),
        (tiled(x), distribute(convolution(), ctx, **tiles)(x)),
    ]
    return [(a.detach(), b.detach()) for a, b in pairs]


@pytest.mark.parametrize("world_size", [1, 2])
def test_constructors_make_what_distribute_makes(pool: WorkerPool, world_size: int) -> None:
    for result in pool.run(by_constructor_and_by_distribute, world_size=world_size):
        for direct, distributed in result:
            assert_close(direct, distributed, rtol=1e-14)


def test_what_distribute_makes_is_an_instance(ctx: DistributedContext) -> None:
    stack = distribute(blur, ctx, num_operators=2, type_object="physics")
    assert isinstance(stack, compat.DistributedStackedLinearPhysics)
    assert isinstance(stack, compat.DistributedStackedPhysics)
    squares = distribute(not_linear, ctx, num_operators=2, type_object="physics")
    assert isinstance(squares, compat.DistributedStackedPhysics)
    assert not isinstance(squares, compat.DistributedStackedLinearPhysics)
    assert isinstance(distribute(L2(), ctx), compat.DistributedDataFidelity)
    tiled = distribute(convolution(), ctx, patch_size=8)
    assert isinstance(tiled, compat.DistributedProcessing)
    assert not isinstance(L2(), compat.DistributedDataFidelity)


def test_class_derived_from_a_shim_is_one_of_its_own(ctx: DistributedContext) -> None:
    class Own(compat.DistributedProcessing):
        pass

    assert not isinstance(distribute(convolution(), ctx, patch_size=8), Own)
    own = Own(ctx, convolution(), strategy_kwargs={"patch_size": 8, "overlap": 2})
    assert isinstance(own, Own)
    assert isinstance(own, shardinv.DistributedProcessing)


def test_other_names_are_shardinvs_own() -> None:
    assert compat.distribute is shardinv.distribute
    assert compat.DistributedContext is shardinv.DistributedContext


def test_stack_of_the_wrong_kind_is_refused(ctx: DistributedContext) -> None:
    assert len(compat.DistributedStackedPhysics(ctx, 2, not_linear)) == 2
    with pytest.raises(ValueError, match="DistributedStackedPhysics"):
        compat.DistributedStackedLinearPhysics(ctx, 2, not_linear)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"strategy": object()}, NotImplementedError),
        ({"strategy_kwargs": {"patchsize": 8}}, TypeError),
        ({"strategy_kwargs": {"patch_size": 0}}, ValueError),
        ({"checkpoint_use_reentrant": True}, ValueError),
        ({"max_batch_size": 0}, ValueError),
        ({"colour": True}, TypeError),
    ],
)
def test_processing_refuses_what_it_does_not_do(
    ctx: DistributedContext, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        compat.DistributedProcessing(ctx, convolution(), **options)


def test_unknown_gather_strategy_is_refused(ctx: DistributedContext) -> None:
    with pytest.raises(ValueError, match="gather_strategy"):
        compat.DistributedStackedLinearPhysics(ctx, 2, blur, gather_strategy="fast")


def averaged_then_not(ctx: DistributedContext) -> list[float]:
    weight = nn.Parameter(torch.tensor(2.0 + ctx.rank))
    handle = compat.DistributedReplicatedParameters(ctx, [weight])
    gradients = []
    for _ in range(2):
        weight.grad = None
        (weight * (1 + ctx.rank)).backward()
        assert weight.grad is not None
        gradients.append(float(weight.grad))
        handle.remove_hooks()
    return [float(weight), *gradients]


def test_gradients_are_averaged_until_the_hooks_are_removed(pool: WorkerPool) -> None:
    assert pool.run(averaged_then_not, world_size=2) == [[2.0, 1.5, 1.0], [2.0, 1.5, 2.0]]


def test_sum_of_gradients_is_not_offered(ctx: DistributedContext) -> None:
    with pytest.raises(ValueError, match="world_size"):
        compat.DistributedReplicatedParameters(ctx, [], average=False)


def test_unrolled_solver(ctx: DistributedContext) -> None:
    model = PGD(
        data_fidelity=L2(),
        prior=PnP(convolution()),
        stepsize=[0.5, 0.5],
        max_iter=2,
        unfold=True,
        trainable_params=["stepsize"],
    )
    assert compat._distribute_base_optim(model, ctx, patch_size=8, overlap=2) is model
    assert isinstance(model.data_fidelity[0], compat.DistributedDataFidelity)
    assert isinstance(model.prior[0].denoiser, compat.DistributedProcessing)


# -- the tiles -------------------------------------------------------------------------------------


def by_hand(x: Tensor, network: nn.Module, tiles: compat.Tiles, most: int | None) -> Tensor:
    indices = list(range(tiles.get_num_patches()))
    patches = [patch for _, patch in tiles.get_local_patches(x, indices)]
    batches = [network(batch) for batch in tiles.apply_batching(patches, max_batch_size=most)]
    results = tiles.unpack_batched_results(batches, len(patches))
    out = torch.zeros_like(x)
    tiles.reduce_patches(out, list(zip(indices, results, strict=True)))
    return out


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_strategy_describes_the_tiles_of_distribute(
    ctx: DistributedContext, overlap: int, most: int | None
) -> None:
    # A halo narrower than the network sees, so that other tiles would give another image.
    x, network = image(*IMAGE), convolution()
    tiles = compat.create_strategy(IMAGE, patch_size=8, overlap=overlap, stride=1)
    expected = distribute(network, ctx, patch_size=8, overlap=overlap)(x)
    assert_close(by_hand(x, network, tiles, most), expected, rtol=1e-14)


def test_default_stride_is_that_of_a_drunet() -> None:
    tiles = compat.create_strategy((1, 1, 64, 64), patch_size=20, overlap=3)
    windows = [tile.window for tile in tiles.grid.tiles]
    assert all(start % 8 == 0 for window in windows for start in window.start)


def test_axes_that_are_not_tiled_stay_whole() -> None:
    tiles = compat.create_strategy((1, 1, 32, 32, 32), (4,), patch_size=8, overlap=2, stride=1)
    assert tiles.get_num_patches() == 4
    assert all(patch.shape[2:4] == (32, 32) for _, patch in tiles.get_local_patches(
        torch.zeros(1, 1, 32, 32, 32), [0, 3]
    ))  # fmt: skip


def test_gradient_passes_through_the_tiles() -> None:
    x = image(1, 1, 16, 16).requires_grad_()
    network = convolution()
    tiles = compat.create_strategy(x.shape, patch_size=8, overlap=2, stride=1)
    weights = image(1, 1, 16, 16)
    (own,) = torch.autograd.grad((by_hand(x, network, tiles, 2) * weights).sum(), x)
    (whole,) = torch.autograd.grad((network(x) * weights).sum(), x)
    assert_close(own, whole, rtol=1e-12)


def test_batches_that_lack_a_patch_are_refused() -> None:
    tiles = compat.create_strategy((1, 1, 16, 16), patch_size=8, overlap=2, stride=1)
    with pytest.raises(ValueError, match="4 patches of 1 images"):
        tiles.unpack_batched_results([torch.zeros(3, 1, 10, 10)], 4)


# -- documented options of methods -----------------------------------------------------------------


def test_options_that_only_the_peer_needs(ctx: DistributedContext) -> None:
    stack = distribute([blur(0, ctx.device, None)], ctx)
    x = image(*IMAGE)
    for apply in (stack.A, stack.forward):
        same = apply(x, gather=True, reduce_op=None, force_input_grad_sync=True)
        assert_close(same[0], stack.A(x)[0], rtol=1e-14)
        with pytest.raises(ValueError, match="return_graph_anchor"):
            apply(x, return_graph_anchor=True)


def test_messages_within_a_group_of_ones_own_are_refused(ctx: DistributedContext) -> None:
    x = torch.ones(2)
    for call in (ctx.all_reduce, ctx.broadcast, ctx.all_gather):
        call(x, group=None)
        with pytest.raises(ValueError, match="process_group"):
            call(x, group=object())


def test_each_measurement_may_be_differentiated_by_itself(ctx: DistributedContext) -> None:
    stack = distribute([blur(i, ctx.device, None) for i in range(3)], ctx)
    x = image(*IMAGE).requires_grad_()
    for entry in stack.A(x):
        entry.sum().backward()
    expected = sum(op.A_adjoint(torch.ones(IMAGE).double()) for op in stack.operators)
    assert x.grad is not None
    assert_close(x.grad, expected, rtol=1e-12)
