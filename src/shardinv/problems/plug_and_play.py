"""The plug-and-play loop: a step towards the measurements, then a denoiser, and again.

It is written for DeepInverse's objects, distributed or not; nothing in it knows which they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def step_size(physics: Any, proxy: Tensor, relaxation: float = 1.8) -> float:
    r"""Step of the gradient of :math:`\frac12\|Ax - y\|^2`, ``relaxation`` over the squared norm.

    Parameters
    ----------
    physics
        A linear operator.
    proxy
        An image ``(1, C, H, W)`` on which the norm is measured; its values don't matter. The norm
        of a convolution doesn't depend on the image's size, so a small one saves time.
    relaxation
        Between 0 and 2, where the gradient step is still a contraction.

    Raises
    ------
    ValueError
        If ``relaxation`` is not between 0 and 2.
    """
    if not 0 < relaxation < 2:
        raise ValueError(f"relaxation must lie between 0 and 2, got {relaxation}")
    return relaxation / float(physics.compute_sqnorm(proxy, max_iter=200, verbose=False))


def noise_schedule(first: float, last: float, iterations: int) -> list[float]:
    """Denoiser strengths falling geometrically from ``first`` to ``last``.

    Examples
    --------
    >>> [round(sigma, 3) for sigma in noise_schedule(0.04, 0.01, 3)]
    [0.04, 0.02, 0.01]
    """
    if iterations == 1 or first == last:
        return [first] * iterations
    ratio = math.log(last / first) / (iterations - 1)
    return [first * math.exp(ratio * k) for k in range(iterations)]


def normalised_adjoint(physics: Any, y: Any, like: Tensor) -> Tensor:
    """A first iterate of the right brightness: the adjoint over what it makes of a white image.

    Parameters
    ----------
    physics
        A linear operator without negative weights.
    y
        Measurements.
    like
        An image of the shape wanted, ``(B, C, H, W)``.
    """
    weight = physics.A_adjoint_A(torch.ones_like(like))
    # A pixel that no frame sees has no weight, and stays dark.
    return physics.A_adjoint(y) / weight.clamp(min=1e-3 * float(weight.max()))


def plug_and_play(
    x: Tensor,
    y: Any,
    physics: Any,
    fidelity: Any,
    denoiser: Any | None,
    step: float,
    sigmas: Sequence[float],
) -> Iterator[Tensor]:
    r"""Proximal gradient descent with a denoiser in place of the proximal operator.

    .. math::

        x_{k+1} = D_{σ_k}\bigl(x_k - γ\, ∇ f(x_k; y)\bigr)

    Parameters
    ----------
    x
        First iterate, ``(B, C, H, W)``.
    y
        Measurements.
    physics, fidelity, denoiser
        DeepInverse objects, or what `shardinv.distribute` made of them. Without a denoiser (None)
        it is plain gradient descent.
    step
        Step size γ.
    sigmas
        Strength of the denoiser at each iteration; their number is the number of iterations.

    Yields
    ------
    Tensor
        The iterate after each iteration, ``(B, C, H, W)``.

    Notes
    -----
    S. Venkatakrishnan, C. Bouman, B. Wohlberg, "Plug-and-play priors for model based
    reconstruction", GlobalSIP 2013; with proximal gradient descent: U. Kamilov, H. Mansour,
    B. Wohlberg, IEEE Signal Processing Letters 24 (2017).
    """
    for sigma in sigmas:
        with torch.no_grad():
            x = x - step * fidelity.grad(x, y, physics)
            if denoiser is not None:
                x = denoiser(x, sigma)
        yield x
