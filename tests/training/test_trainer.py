"""``deepinv.Trainer`` unchanged, on several ranks: the undistributed training on each of them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinv.loss import SupLoss
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from deepinv.physics import Blur, GaussianNoise, StackedLinearPhysics
from deepinv.training import Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from shardinv import DistributedContext, distribute
from shardinv.exchange import DisagreementError
from tests.harness import (
    WorkerPool,
    assert_close,
    assert_every_rank_raised,
    assert_same_on_every_rank,
)


class Small(nn.Module):
    """A residual network of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, sigma: Any = None) -> torch.Tensor:
        return x + self.last(torch.tanh(self.first(x)))


class Pictures(Dataset):
    """Five pictures, a little noisy: each loading draws from the default generator."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> torch.Tensor:
        rows = torch.arange(12.0).view(-1, 1) * (1 + index)
        picture = 0.5 + 0.5 * torch.sin(rows / 5 + torch.arange(12.0) / 3)
        return picture[None] + 0.01 * torch.randn(1, 12, 12)


def operators() -> list[Any]:
    found = []
    for number in range(3):
        kernel = torch.rand(1, 1, 3, 3, generator=torch.Generator().manual_seed(number))
        found.append(Blur(kernel / kernel.sum(), padding="circular"))
    return found


def model() -> PGD:
    torch.manual_seed(0)
    return PGD(
        data_fidelity=L2(), prior=PnP(Small()), stepsize=0.3, sigma_denoiser=0.1, max_iter=2,
        unfold=True, trainable_params=["stepsize"],
    )  # fmt: skip


def make(ctx: DistributedContext | None, folder: Any, **options: Any) -> Trainer:
    """A trainer; undistributed without a context. Written as for one process."""
    with torch.random.fork_rng():
        net, physics = model(), StackedLinearPhysics(operators())
    if ctx is not None:
        net, physics = distribute(net, ctx, patch_size=12, overlap=0), distribute(physics, ctx)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Trainer(
            **{
                "model": net,
                "physics": physics,
                "optimizer": optimizer,
                "train_dataloader": DataLoader(Pictures(), batch_size=2, shuffle=True),
                "eval_dataloader": DataLoader(Pictures(), batch_size=2),
                "online_measurements": True,
                "epochs": 3,
                "losses": SupLoss(),
                "device": "cpu",
                "save_path": folder,
                "show_progress_bar": False,
                "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
                **options,
            }
        )


def numbers(trainer: Trainer) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    return {
        "loss": torch.tensor(trainer.loss_history["SupLoss"]),
        "PSNR": torch.tensor(trainer.eval_metrics_history["PSNR"]),
        "weights": [p.detach().clone() for p in trainer.model.parameters()],
    }


def train(ctx: DistributedContext, folder: str) -> dict[str, Any]:
    """Ranks are seeded differently; rank 0 trains what one process trains."""
    os.chdir(folder)
    torch.manual_seed(3 + 10 * ctx.rank)
    found = numbers(make(ctx, "."))  # the default path, where each rank would make a folder
    if ctx.is_main:
        torch.manual_seed(3)
        expected = numbers(make(None, None))
        assert_close(found, expected, 1e-5)
        assert expected["loss"][-1] < 0.8 * expected["loss"][0]
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_training(pool: WorkerPool, world_size: int, tmp_path: Path) -> None:
    """Peer's cases 7 and 27: shuffling, and a folder that one rank makes."""
    assert_same_on_every_rank(pool.run(train, str(tmp_path), world_size=world_size))
    (folder,) = [entry for entry in tmp_path.iterdir() if entry.is_dir()]
    assert {file.name for file in folder.iterdir()} >= {"ckp_best.pth.tar", "ckp_2.pth.tar"}
    assert not list(folder.glob("*.part"))


def resume(ctx: DistributedContext, folder: str) -> dict[str, Any]:
    """Two epochs, then one more from the checkpoint, as on one process."""

    def twice(ctx: DistributedContext | None, folder: str) -> dict[str, Any]:
        torch.manual_seed(3)
        first = make(ctx, folder, epochs=2)
        numbers(first)
        checkpoint = Path(first.save_path) / "ckp_1.pth.tar"
        model().load_state_dict(torch.load(checkpoint, weights_only=False)["state_dict"])
        torch.manual_seed(4)
        second = make(ctx, None, epochs=3, ckpt_pretrained=checkpoint)
        found = numbers(second)
        assert len(found["loss"]) == 1
        return found

    found = twice(ctx, folder)
    if ctx.is_main:
        assert_close(found, twice(None, f"{folder}/alone"), 1e-5)
    return found


def test_resuming(pool: WorkerPool, tmp_path: Path) -> None:
    assert_same_on_every_rank(pool.run(resume, str(tmp_path), world_size=2))


def evaluate(ctx: DistributedContext, folder: str, sharded: bool) -> dict[str, float]:
    """``test`` writes pictures, once; it and early stopping are the same on every rank."""
    together = (lambda batch: ctx.shard(torch.stack(batch))) if sharded else None
    data = DataLoader(Pictures(), batch_size=1, collate_fn=together)
    trainer = make(ctx, None, epochs=9, early_stop=1, eval_dataloader=data, train_dataloader=data)
    for group in trainer.optimizer.param_groups:
        group["lr"] = -1e-2  # away from the solution, to stop early
    numbers(trainer)
    assert len(trainer.eval_metrics_history["PSNR"]) < 9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trainer.test(data, save_path=f"{folder}/pictures")
    return {name: float(value) for name, value in found.items() if "PSNR" in name}


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_evaluation(pool: WorkerPool, tmp_path: Path, sharded: bool) -> None:
    first, second = pool.run(evaluate, str(tmp_path), sharded, world_size=2)
    assert first == second
    assert len(list((tmp_path / "pictures").glob("*/*.png"))) == 3  # of the last sample


def noisy_and_mixed(ctx: DistributedContext) -> list[Any]:
    """Noise that operators draw, and bfloat16."""
    stack = operators()
    for operator in stack:
        operator.noise_model = GaussianNoise(0.1)
    torch.manual_seed(5 + ctx.rank)
    trainer = make(ctx, None, epochs=1, physics=distribute(stack, ctx), mixed_precision="bfloat16")
    return numbers(trainer)["weights"]


def test_noise_and_mixed_precision(pool: WorkerPool) -> None:
    assert_same_on_every_rank(pool.run(noisy_and_mixed, world_size=2))


def own_samples(ctx: DistributedContext) -> None:
    sampler = DistributedSampler(Pictures(), ctx.world_size, ctx.rank)
    numbers(make(ctx, None, train_dataloader=DataLoader(Pictures(), sampler=sampler)))


def test_samples_of_each_rank_are_refused(pool: WorkerPool) -> None:
    outcomes = pool.run(own_samples, world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, DisagreementError, "different samples.*DistributedSampler")


def unwritable(ctx: DistributedContext, folder: str) -> None:
    Path(folder, "file").touch()
    numbers(make(ctx, f"{folder}/file"))


def test_a_folder_that_cannot_be_made(pool: WorkerPool, tmp_path: Path) -> None:
    outcomes = pool.run(unwritable, str(tmp_path), world_size=2, expect_error=True)
    assert_every_rank_raised(outcomes, ValueError, "making the trainer's folder failed on rank 0")


def others(ctx: DistributedContext) -> None:
    """A trainer of another model is left alone."""
    trainer = make(None, None, epochs=1)
    kind = type(trainer)
    numbers(trainer)
    assert type(trainer) is kind
    mine = make(ctx, None)
    assert distribute(mine, ctx) is mine
    assert isinstance(mine, kind)
    assert type(mine) is not kind


def test_other_trainers_are_left_alone(pool: WorkerPool) -> None:
    pool.run(others, world_size=2)
