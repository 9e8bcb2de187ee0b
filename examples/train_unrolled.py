"""Training an unrolled solver over several processes, with DeepInverse's own trainer.

The same file, unchanged, on one process or on many, with the same result:

    python examples/train_unrolled.py
    torchrun --standalone --nproc_per_node=2 examples/train_unrolled.py

Four iterations of proximal gradient descent put blurred, coarse frames of a photograph together.
Their step sizes, and a small network that stands for the prior, are trained end to end. All
processes work on one sample: frames and tiles are shared out, gradients are the undistributed ones.
`--epochs 2` is a short look.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from deepinv.loss.metric import PSNR
from deepinv.models import DnCNN
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from deepinv.training import Trainer
from torch.utils.data import DataLoader

from shardinv import DistributedContext, distribute
from shardinv.io import read_image, shipped_file
from shardinv.problems import MultiFrame

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--save", default=None, help="folder for checkpoints; by default none")
options = parser.parse_args()

SIDE, TRAINING, VALIDATION = 64, 24, 6
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
    # Six frames at half the resolution, each moved, blurred and noisy in its own way.
    problem = MultiFrame(frames=6, factor=2, noise=0.03)
    physics = distribute(
        problem.frame, ctx, num_operators=problem.frames, type_object="linear_physics"
    )

    network = DnCNN(3, 3, depth=5, nf=24, pretrained=None)
    with torch.no_grad():
        network.out_conv.weight.mul_(0.1)  # begin near the identity
    model = PGD(
        data_fidelity=L2(),
        prior=PnP(network),
        stepsize=[0.4] * 4,
        sigma_denoiser=[0.03] * 4,
        max_iter=4,
        unfold=True,
        trainable_params=["stepsize"],
    )
    # In place: the fidelity, the prior's network and the trained parameters. Activations are kept
    # or computed anew, as memory allows.
    model = distribute(model, ctx, patch_size=32, overlap=8)

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    shuffled = torch.Generator().manual_seed(0)
    trainer = Trainer(
        model=model,
        physics=physics,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs, 2e-4),
        train_dataloader=DataLoader(
            list(crops("stream", TRAINING, 1)), 4, shuffle=True, generator=shuffled
        ),
        eval_dataloader=DataLoader(list(crops("picos", VALIDATION, 2)), 6),
        online_measurements=True,
        metrics=PSNR(),
        epochs=options.epochs,
        device=ctx.device,
        save_path=options.save,
        show_progress_bar=False,
    )
    # Every process runs this; one of them prints and writes.
    before = trainer.test(trainer.eval_dataloader, compare_no_learning=False)["PSNR"]
    trainer.train()
    after = trainer.test(trainer.eval_dataloader, compare_no_learning=False)["PSNR"]

    if ctx.is_main:
        norm = torch.cat([p.detach().flatten().double() for p in model.parameters()]).norm()
        print(f"\nvalidation PSNR {before:.2f} dB before training, {after:.2f} dB after")
        print(f"step sizes {[round(float(s.detach()), 3) for s in model.params_algo['stepsize']]}")
        print(f"norm of the weights {norm:.6f}")
