"""Guidance terms of diffusion posterior samplers, on a distributed stack."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from deepinv.models import Denoiser
from deepinv.physics import GaussianNoise
from deepinv.sampling import DPSDataFidelity, ILVRDataFidelity

from shardinv.blocks import check_image
from shardinv.exchange import TensorSpec
from shardinv.fidelity.options import hand_over
from shardinv.fidelity.space import measurements, operators_of, predictions, together
from shardinv.physics import DistributedStackedLinearPhysics, DistributedStackedPhysics
from shardinv.physics.space.block import LocalBlock
from shardinv.physics.stacked import Measurements, sharding_of
from shardinv.tensor import gather


def dps_value(
    term: DPSDataFidelity,
    x: torch.Tensor,
    y: Measurements,
    physics: DistributedStackedPhysics,
    sigma: torch.Tensor | float,
    *args: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""The guidance of diffusion posterior sampling for a stack, and the denoised image.

    With ``guidance="norm"`` it is the norm of *all* residuals together,
    :math:`\lambda\sqrt{\sum_i\|A_i D(x) - y_i\|^2}`, which no sum over operators gives; with
    ``"annealed"`` it is the sum of their squares, each over the variance of its operator's noise.

    Parameters
    ----------
    term
        The fidelity; its denoiser may be distributed or not.
    x
        Noisy image ``(B, C, *spatial)``, the same on every rank.
    y
        Measurements.
    physics
        The stack.
    sigma
        Noise level of ``x``: a number, or one for each batch entry.

    Returns
    -------
    tuple of torch.Tensor
        The value ``(B,)`` and the denoised image.

    References
    ----------
    Chung, Kim, McCann, Klasky, Ye, "Diffusion posterior sampling for general noisy inverse
    problems", ICLR 2023.
    """
    if isinstance(sigma, torch.Tensor):
        sigma = sigma.to(torch.float32)
    denoised = term.denoiser(x.to(torch.float32), sigma, *args, **kwargs)
    if term.clip is not None:
        denoised = torch.clip(denoised, term.clip[0], term.clip[1])
    space = physics if isinstance(physics, LocalBlock) else physics.by_space(denoised, y)
    if space is not None:
        total = torch.stack(
            [
                _square(term, op, u, entry, sigma)
                for op, u, entry in zip(
                    operators_of(space),
                    predictions(space, denoised),
                    measurements(space, denoised, y),
                    strict=True,
                )
            ]
        ).sum(0)
        return _guidance(term, total), denoised
    with physics.ctx.ledger.block("fidelity"), physics.trained.lent({}) as (_, tied):
        check_image(physics.ctx, physics.first_use, denoised, "the denoised image")
        image, token = physics.enter(denoised)
        owned = physics.own(y)
        (level,), _, told = hand_over(physics.ctx.comm, physics.first_use, (sigma,), {})

        def parts() -> Any:
            for index, op in physics.operators.local_items():
                yield _square(term, op, op.A(image), owned[index], level)

        total = physics.sum_parts(
            parts(),
            token + tied + told + owned.token,
            True,
            None
            if owned.key is None
            else ("dps", term.guidance, TensorSpec.of(denoised), owned.key),
        )
    return _guidance(term, total), denoised


def _square(
    term: DPSDataFidelity, op: Any, predicted: Any, measured: Any, sigma: torch.Tensor | float
) -> torch.Tensor:
    """An operator's squared residual ``(B,)``, over the variance of its noise where that counts."""
    difference = predicted - measured
    square = torch.linalg.vector_norm(difference, ord=2, dim=tuple(range(1, difference.ndim))) ** 2
    return square if term.guidance == "norm" else square / _variance(op, difference, sigma)


def _guidance(term: DPSDataFidelity, total: torch.Tensor) -> torch.Tensor:
    value = total.sqrt() if term.guidance == "norm" else total / 2
    return term.weight * value


def _variance(op: Any, difference: torch.Tensor, sigma: torch.Tensor | float) -> torch.Tensor:
    noise = getattr(op, "noise_model", None)
    sigma_y = noise.sigma if isinstance(noise, GaussianNoise) else 0.0
    measured = Denoiser._handle_sigma(sigma_y, reference_tensor=difference)
    current = Denoiser._handle_sigma(sigma, reference_tensor=difference)
    return (measured**2 + current**2).flatten()


def ilvr_gradient(
    term: ILVRDataFidelity,
    x: torch.Tensor,
    y: Measurements,
    physics: DistributedStackedPhysics,
    sigma: torch.Tensor | float,
    *args: Any,
    stream: Callable[[int], AbstractContextManager[None]],
    **kwargs: Any,
) -> torch.Tensor:
    r"""The guidance :math:`\lambda A^\dagger r` of iterative latent variable refinement.

    The pseudo-inverse is that of the whole stack, which is no sum over operators.

    Parameters
    ----------
    term
        The fidelity.
    x
        Noisy image ``(B, C, *spatial)``, the same on every rank.
    y
        Measurements; each is noised on its own rank.
    physics
        The stack, linear.
    sigma
        Noise level of ``x``: a number, or one for each batch entry.
    stream
        Of an operator's index: where its random numbers come from.

    References
    ----------
    Choi, Kim, Jeong, Gwon, Yoon, "ILVR: conditioning method for denoising diffusion probabilistic
    models", ICCV 2021.
    """
    if not isinstance(physics, (DistributedStackedLinearPhysics, LocalBlock)):
        raise TypeError(f"{type(term).__name__} needs a stack of linear operators")
    space = physics if isinstance(physics, LocalBlock) else physics.by_space(x, y)
    if space is not None:
        residuals = []
        for index, (op, u, measured) in enumerate(
            zip(
                operators_of(space),
                predictions(space, x),
                measurements(space, x, y),
                strict=True,
            )
        ):
            with stream(index):
                apart = u - term._noised_measurements(measured, sigma)
            residuals.append(apart / term._guidance_strength(op, sigma, apart))
        solved: Any = space.A_dagger(together(space, residuals), layout=sharding_of(x))
        return term.weight * (solved if sharding_of(x) else gather(solved))
    owned = physics.own(y)
    (sigma,), _, told = hand_over(physics.ctx.comm, physics.first_use, (sigma,), {})
    residual: dict[int, Any] = {}
    forward = physics.A(x, gather=False)
    for index, entry in forward.local_items():
        with stream(index):
            difference = entry - term._noised_measurements(owned[index], sigma)
        operator = physics.operators[index]
        residual[index] = difference / term._guidance_strength(operator, sigma, difference)
    keyed = forward.key is not None and owned.key is not None
    result = forward.like(residual, key=("ilvr", forward.key, owned.key) if keyed else None)
    result.token = forward.token + owned.token + told
    return term.weight * physics.A_dagger(result, layout=sharding_of(x))
