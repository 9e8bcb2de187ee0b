"""What is learnt from: squares cut from photographs, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shardinv.cli.demo.scene import load_photograph
from shardinv.cli.errors import UsageError


def cut_squares(names: Sequence[str], side: int, count: int, seed: int) -> Tensor:
    """Squares from anywhere in photographs, in turn, ``(count, 3, side, side)`` in [0, 1].

    Raises
    ------
    UsageError
        If a photograph can't be read, or is smaller than a square.
    """
    photographs = []
    for name in names:
        image = load_photograph(name)[0]
        if min(image.shape[1:]) < side:
            raise UsageError(
                f"data.side {side}: {name} has {image.shape[1]} × {image.shape[2]} pixels only"
            )
        photographs.append(image.expand(3, -1, -1))
    draw = torch.Generator().manual_seed(seed)
    squares = []
    for number in range(count):
        image = photographs[number % len(photographs)]
        row, column = (
            int(torch.randint(n - side + 1, (1,), generator=draw)) for n in image.shape[1:]
        )
        squares.append(image[:, row : row + side, column : column + side])
    return torch.stack(squares)


def batches(samples: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """All samples in an order that the seed decides, so many at a time; the last may be fewer."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    for chosen in order.split(size):
        yield samples[chosen]
