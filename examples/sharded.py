"""Plug-and-play on an image that no process holds: every one has a box of it.

The same file, unchanged, on one process or on many, with the same result:

    python examples/sharded.py
    torchrun --standalone --nproc_per_node=4 examples/sharded.py

The loop at the end is that of `plug_and_play.py`. What differs is how the image comes to be: box by
box, so that it may be larger than any one memory.
"""

from __future__ import annotations

import torch
from deepinv.optim.data_fidelity import L2

from shardinv import DistributedContext, distribute
from shardinv.io import read_image, shipped_file
from shardinv.problems import MultiFrame, centre_square, load_denoiser, psnr, step_size

SIZE, ITERATIONS, SIGMA = 256, 10, 0.014

with DistributedContext(seed=0) as ctx, torch.no_grad():
    photograph, _ = centre_square(read_image(shipped_file("picos")), SIZE)

    # `from_function` asks for this rank's box alone. Here it is cut from a photograph; it could as
    # well be read from a file, or computed. With the whole at hand, `ctx.shard(photograph)`.
    truth = ctx.from_function(
        (1, 3, SIZE, SIZE), lambda box: photograph[(..., *box.slices())].to(ctx.device)
    )

    # Blur and down-sampling depend on a neighbourhood, so they run by space: each rank applies all
    # eight operators to its box, with a halo of its neighbours' pixels. So measurements are sharded
    # as well.
    problem = MultiFrame(frames=8, factor=2, noise=0.03)
    physics = distribute(
        problem.frame,
        ctx,
        num_operators=problem.frames,
        type_object="linear_physics",
        strategy="space",
    )
    fidelity = distribute(L2(), ctx)
    denoiser = distribute(
        load_denoiser("ffdnet", device=ctx.device), ctx, patch_size=128, overlap=24
    )

    y = physics(truth)
    stepsize = step_size(physics, torch.zeros(1, 3, 64, 64, device=ctx.device))
    x = physics.A_adjoint(y) / physics.A_adjoint_A(torch.ones_like(truth))

    ctx.ledger.reset()
    for iteration in range(ITERATIONS):
        x = x - stepsize * fidelity.grad(x, y, physics)  # halos out and back
        x = denoiser(x, sigma=SIGMA)  # halos in
        quality = psnr(x, truth)  # a number
        if ctx.is_main:
            print(f"iteration {iteration + 1:2d}  PSNR {quality:.3f} dB")

    norm = torch.linalg.vector_norm(x)
    if ctx.is_main:
        print(f"\n{physics.describe()}\n\n{denoiser.describe()}")
        sent = ctx.ledger.bytes_sent / ITERATIONS
        print(f"\nthis rank holds {x.box} of {SIZE} × {SIZE} px")
        print(f"and sent {sent / 1e3:.1f} kB an iteration")
        print(f"PSNR {quality:.3f} dB, norm of the image {norm:.4f}")
