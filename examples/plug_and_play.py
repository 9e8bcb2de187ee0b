"""Plug-and-play over several processes: multi-frame super-resolution of a photograph.

The same file, unchanged, on one process or on many, with the same result:

    python examples/plug_and_play.py
    torchrun --standalone --nproc_per_node=2 examples/plug_and_play.py

The algorithm is the loop at the end. It doesn't know how its two building blocks are computed: that
was decided by `distribute`, above it.
"""

from __future__ import annotations

import torch
from deepinv.optim.data_fidelity import L2

from shardinv import DistributedContext, distribute
from shardinv.io import read_image, shipped_file
from shardinv.problems import MultiFrame, centre_square, load_denoiser, psnr, step_size

SIZE, ITERATIONS, SIGMA = 256, 10, 0.014

# Which rank am I, which device is mine, and who are the others? On one process: rank 0 of 1.
with DistributedContext(seed=0) as ctx, torch.no_grad():
    photograph, _ = centre_square(read_image(shipped_file("picos")), SIZE)
    truth = photograph.to(ctx.device)

    # Eight coarse frames: each moved, blurred and noisy in its own way. `frame(index, device)`
    # builds one operator; every rank builds only those it will apply.
    problem = MultiFrame(frames=8, factor=2, noise=0.03)
    physics = distribute(
        problem.frame, ctx, num_operators=problem.frames, type_object="linear_physics"
    )

    # The gradient of the fidelity is a sum over frames: each rank adds up its own frames' part,
    # and one reduction brings the parts together.
    fidelity = distribute(L2(), ctx)

    # The network runs on overlapping tiles, shared out to the ranks. FFDNet sees 24 pixels far, so
    # with an overlap of 24 its result is that on the whole image.
    denoiser = distribute(
        load_denoiser("ffdnet", device=ctx.device), ctx, patch_size=128, overlap=24
    )

    # Measurements stay on the rank that made them.
    y = physics(truth, gather=False)
    stepsize = step_size(physics, torch.zeros(1, 3, 64, 64, device=ctx.device))

    # Start from the adjoint, brought to the image's brightness. Every rank holds the iterate.
    x = physics.A_adjoint(y) / physics.A_adjoint_A(torch.ones_like(truth))

    for iteration in range(ITERATIONS):
        x = x - stepsize * fidelity.grad(x, y, physics)  # towards the measurements
        x = denoiser(x, sigma=SIGMA)  # towards images
        quality = psnr(x, truth)
        if ctx.is_main:
            print(f"iteration {iteration + 1:2d}  PSNR {quality:.3f} dB")

    if ctx.is_main:
        print(f"\n{denoiser.describe()}")
        print(f"\nthis rank sent {ctx.ledger.bytes_sent / 1e6:.1f} MB")
        print(f"PSNR {quality:.3f} dB, norm of the image {torch.linalg.vector_norm(x):.4f}")
