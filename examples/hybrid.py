"""Groups of processes: each group works on images of its own, its processes on one image together.

Four processes as two groups of two, with DistributedDataParallel between the groups:

    torchrun --standalone --nproc_per_node=4 examples/hybrid.py
    torchrun --standalone --nproc_per_node=4 examples/hybrid.py --fsdp   # weights sharded, too
    python examples/hybrid.py                                            # one process, same result

Within a group `distribute` shares out operators and tiles, and gradients are the whole image's.
Between groups it is torch's own data parallelism, on the other axis of the mesh.
"""

from __future__ import annotations

import sys

import torch
from deepinv.models import DnCNN
from deepinv.optim import PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardinv import DistributedContext, distribute
from shardinv.io import read_image, shipped_file
from shardinv.problems import MultiFrame

SIDE, STEPS = 48, 6

with DistributedContext(seed=0) as world:
    groups = 2 if world.world_size % 2 == 0 else 1
    if groups > 1:
        mesh = init_device_mesh(
            world.device.type,
            (groups, world.world_size // groups),
            mesh_dim_names=("data", "image"),
        )
        image = DistributedContext(process_group=mesh["image"].get_group(), seed=0)
        data = DistributedContext(process_group=mesh["data"].get_group(), seed=0)
    else:
        image, data = world, DistributedContext()

    with image, data:
        # Four crops of a photograph; each group takes its own.
        photograph = read_image(shipped_file("stream"))
        crops = torch.stack(
            [photograph[0, :, 300 * k :, 400 * k :][:, :SIDE, :SIDE] for k in range(4)]
        )
        truth = crops[data.rank :: data.world_size].to(world.device)

        # Within the group: frames and tiles are shared out.
        problem = MultiFrame(frames=4, factor=2, noise=0.0)
        physics = distribute(
            problem.frame, image, num_operators=problem.frames, type_object="linear_physics"
        )
        torch.manual_seed(0)
        network = DnCNN(3, 3, depth=4, nf=16, pretrained=None)
        model = PGD(
            data_fidelity=L2(), prior=PnP(network), stepsize=0.5, sigma_denoiser=0.05,
            max_iter=3, unfold=True, trainable_params=["stepsize"],
        )  # fmt: skip
        model = distribute(model, image, patch_size=24, overlap=4)

        # Between the groups: gradients are averaged.
        parallel: torch.nn.Module = model
        if groups > 1 and "--fsdp" in sys.argv:
            # FSDP takes no scalars: step sizes stay whole, and are averaged by themselves.
            scalars = {p for p in model.parameters() if p.ndim == 0}
            distribute(list(scalars), data)
            parallel = fully_shard(model, mesh=mesh["data"], ignored_params=scalars)
        elif groups > 1:
            parallel = DistributedDataParallel(model, process_group=mesh["data"].get_group())

        optimizer = torch.optim.Adam(parallel.parameters(), lr=2e-3)
        y = physics.A(truth)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = (parallel(y, physics) - truth).square().mean()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            data.all_reduce(mean, op="mean")
            if world.is_main:
                print(f"step {step + 1}  loss {mean:.6f}")

        weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        norm = torch.stack([w.detach().double().square().sum() for w in weights]).sum().sqrt()
        if world.is_main:
            print(f"{groups} groups of {image.world_size}, norm of the weights {norm:.6f}")
