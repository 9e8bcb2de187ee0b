"""Operators for the tests: small, dense or local, of unequal shapes, the same on every rank.

Each function builds its operators anew from fixed seeds, so the reference and the distributed stack
share nothing.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from deepinv.physics import Blur, Inpainting, LinearPhysics, Physics
from deepinv.utils.tensorlist import TensorList

#: Neither side is a multiple of anything that matters.
CHANNELS, HEIGHT, WIDTH = 2, 7, 5
IMAGE = (CHANNELS, HEIGHT, WIDTH)

#: Only the order of a sum differs from the reference.
SUMMATION = 1e-12


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out DeepInverse's warnings about what the tests do on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*least_squares_implicit_backward.*")
        warnings.filterwarnings("ignore", message=".*implicit_backward_solver.*")
        warnings.filterwarnings("ignore", message=".*convergence not reached.*")
        yield


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def image(seed: int = 0, batch: int = 2, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(batch, *IMAGE, generator=generator(1000 + seed), dtype=dtype)


def positive_image(seed: int = 0, batch: int = 2) -> torch.Tensor:
    return image(seed, batch).abs() + 0.1


class Dense(LinearPhysics):
    """A matrix on the flattened image."""

    def __init__(self, rows: int, seed: int, dtype: torch.dtype = torch.float64, **kw: Any) -> None:
        super().__init__(**kw)
        columns = CHANNELS * HEIGHT * WIDTH
        matrix = torch.randn(rows, columns, generator=generator(seed), dtype=dtype)
        self.register_buffer("matrix", matrix / columns**0.5)

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return x.flatten(1).to(self.matrix.dtype) @ self.matrix.mT

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return (y @ self.matrix.conj()).view(-1, *IMAGE)


class Spectrum(LinearPhysics):
    """Fourier coefficients of a real image: complex measurements, a real adjoint."""

    def __init__(self, seed: int, **kw: Any) -> None:
        super().__init__(**kw)
        self.register_buffer("mask", (torch.rand(IMAGE, generator=generator(seed)) > 0.4).double())

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.mask * torch.fft.fft2(x, norm="ortho")

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.fft.ifft2(self.mask * y, norm="ortho").real


class Gradients(LinearPhysics):
    """One operator that makes a list of two measurements."""

    def A(self, x: torch.Tensor, **_: Any) -> TensorList:
        return TensorList([x.diff(dim=-1), x.diff(dim=-2)])

    def A_adjoint(self, y: TensorList, **_: Any) -> torch.Tensor:
        pad = torch.nn.functional.pad
        along = pad(y[0], (1, 0)) - pad(y[0], (0, 1))
        down = pad(y[1], (0, 0, 1, 0)) - pad(y[1], (0, 0, 0, 1))
        return along + down


class Squared(Physics):
    """A matrix, then a smooth function of each entry: not linear."""

    def __init__(self, rows: int, seed: int, **kw: Any) -> None:
        super().__init__(**kw)
        self.linear = Dense(rows, seed)

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        z = self.linear.A(x)
        return z + 0.3 * z.sin()


def kernel(seed: int, size: int = 3) -> torch.Tensor:
    weights = torch.rand(1, 1, size, size, generator=generator(seed), dtype=torch.float64)
    return weights / weights.sum()


def linear_operators(count: int = 5) -> list[LinearPhysics]:
    """A mixture of operators whose measurements have different shapes and costs."""
    mask = (torch.rand(IMAGE, generator=generator(3)) > 0.5).double()
    with quiet():
        operators = [
            Dense(17, seed=1),
            Blur(filter=kernel(2), padding="circular"),
            Inpainting(img_size=IMAGE, mask=mask),
            Blur(filter=kernel(4), padding="valid"),
            Gradients(),
            Spectrum(seed=6),
        ]
    return operators[:count]


def nonlinear_operators(count: int = 3) -> list[Physics]:
    return [Squared(rows=30 + 7 * number, seed=20 + number) for number in range(count)]


def masks(count: int = 4) -> list[LinearPhysics]:
    """Masks that share no pixel and together keep them all."""
    owner = torch.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % count
    with quiet():
        return [
            Inpainting(img_size=IMAGE, mask=(owner == number).double().expand(IMAGE).clone())
            for number in range(count)
        ]


def random_like(y: Any, seed: int = 0) -> Any:
    """Random values of the shapes and types of measurements."""
    source = generator(5000 + seed)

    def draw(entry: Any) -> Any:
        if isinstance(entry, torch.Tensor):
            return torch.randn(entry.shape, generator=source, dtype=entry.dtype)
        return TensorList([draw(part) for part in entry])

    return draw(y)


def flat(y: Any) -> list[torch.Tensor]:
    """The tensors of measurements, nested lists opened."""
    if isinstance(y, torch.Tensor):
        return [y]
    return [tensor for entry in (y[i] for i in range(len(y))) for tensor in flat(entry)]


def unflat(tensors: list[torch.Tensor], like: Any) -> Any:
    """Measurements of the structure of ``like`` from their tensors."""
    rest = iter(tensors)

    def fill(entry: Any) -> Any:
        if isinstance(entry, torch.Tensor):
            return next(rest)
        result = TensorList([])
        result.x = [fill(entry[i]) for i in range(len(entry))]
        return result

    return fill(like)
