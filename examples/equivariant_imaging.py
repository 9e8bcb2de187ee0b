"""Training without ground truth: equivariant imaging over several processes.

The same file, unchanged, on one process or on many, with the same result:

    python examples/equivariant_imaging.py
    torchrun --standalone --nproc_per_node=2 examples/equivariant_imaging.py

Half of the pixels of each picture are missing, always the same ones, and no whole picture is ever
seen. The network learns from two things: its answer must agree with the pixels that are there
(measurement consistency), and a shifted picture is a picture (equivariance; Chen, Tachella, Davies,
ICCV 2021). PSNR is measured against the truth for display only. `--epochs 2` is a short look.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from deepinv.loss import EILoss, MCLoss
from deepinv.loss.metric import PSNR
from deepinv.models import DnCNN
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from deepinv.physics import Inpainting
from deepinv.training import Trainer
from deepinv.transform import Shift
from torch.utils.data import DataLoader

from shardinv import DistributedContext, distribute
from shardinv.io import read_image, shipped_file

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=16)
options = parser.parse_args()

SIDE, COUNT = 64, 16
warnings.filterwarnings("ignore", module="deepinv")


def crops(name: str, count: int, seed: int) -> torch.Tensor:
    """Squares from anywhere in a photograph that ships, `(count, 3, SIDE, SIDE)`."""
    photograph = read_image(shipped_file(name))[0]
    draw = torch.Generator().manual_seed(seed)
    rows, columns = (
        torch.randint(n - SIDE, (count,), generator=draw).tolist() for n in photograph.shape[1:]
    )
    return torch.stack(
        [photograph[:, r : r + SIDE, c : c + SIDE] for r, c in zip(rows, columns, strict=True)]
    )


with DistributedContext(seed=0) as ctx:
    # A mask acts pixel by pixel: each process applies it to its part of the picture.
    mask = (torch.rand(1, SIDE, SIDE, generator=torch.Generator().manual_seed(3)) > 0.5).float()
    physics = distribute(Inpainting((3, SIDE, SIDE), mask=mask, device=ctx.device), ctx)

    network = DnCNN(3, 3, depth=6, nf=24, pretrained=None)
    with torch.no_grad():
        network.out_conv.weight.mul_(0.1)  # begin near the identity
    model = PGD(
        data_fidelity=L2(),
        prior=PnP(network),
        stepsize=[1.0] * 3,
        sigma_denoiser=[0.03] * 3,
        max_iter=3,
        unfold=True,
        trainable_params=["stepsize"],
    )
    model = distribute(model, ctx, patch_size=32, overlap=8)

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    shuffled = torch.Generator().manual_seed(0)
    trainer = Trainer(
        model=model,
        physics=physics,
        optimizer=optimizer,
        # The trainer hands them to `distribute`: every process draws the same shifts.
        losses=[MCLoss(), EILoss(Shift(), apply_noise=False)],
        train_dataloader=DataLoader(
            list(crops("stream", COUNT, 1)), 4, shuffle=True, generator=shuffled
        ),
        eval_dataloader=DataLoader(list(crops("picos", 6, 2)), 6),
        online_measurements=True,
        metrics=PSNR(),
        epochs=options.epochs,
        device=ctx.device,
        save_path=None,
        show_progress_bar=False,
    )
    before = trainer.test(trainer.eval_dataloader)
    trainer.train()
    after = trainer.test(trainer.eval_dataloader)["PSNR"]

    if ctx.is_main:
        norm = torch.cat([p.detach().flatten().double() for p in model.parameters()]).norm()
        print(f"\nPSNR of the pixels that are there {before['PSNR no learning']:.2f} dB")
        print(f"PSNR {before['PSNR']:.2f} dB before training, {after:.2f} dB after")
        print(f"norm of the weights {norm:.6f}")
