"""What the tests of solvers and samplers share: operators on sharded images, and the comparison.

The operators are DeepInverse's, or plain classes of its, on images that are sharded: pixels meet
their neighbours by crops, which move a row or a column between ranks.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from deepinv.models import Denoiser
from deepinv.physics import LinearPhysics

from shardinv import DistributedContext
from shardinv.tensor import CounterRandom, ShardedTensor

SHAPE = (2, 3, 13, 9)
TINY = (2, 3, 3, 5)

#: World size, mesh, image: uneven boxes, both axes, an empty box.
LAYOUTS: tuple[tuple[int, Any, tuple[int, ...]], ...] = (
    (1, None, SHAPE),
    (2, (1, 2), SHAPE),
    (3, (3, 1), SHAPE),
    (4, (2, 2), SHAPE),
    (4, (4, 1), TINY),
)

Case = Callable[[torch.Tensor, torch.Tensor], Any]
"""From an image and a mask, both plain or both sharded, to numbers and images."""


def images(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """An image in [0, 1] and a mask ``(1, 1, *spatial)``."""
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand((1, 1, *shape[2:]), generator=generator, dtype=torch.float64)
    return x, (mask > 0.3).double()


def some_of(cases: dict[str, Case], mesh: Any, shape: tuple[int, ...]) -> dict[str, Case]:
    """All cases on one rank, half of them on two, a third on each of the other layouts."""
    number = next(k for k, (_, m, s) in enumerate(LAYOUTS) if (m, s) == (mesh, shape))
    if number == 0:
        return cases
    # Neighbours in the table are variants of one solver: each solver is on every layout, each
    # variant on one rank and one or two layouts of several.
    chosen = [k // 3 % 2 == 0 if number == 1 else k % 3 == number - 2 for k in range(len(cases))]
    return {name: case for (name, case), here in zip(cases.items(), chosen, strict=True) if here}


class Mixing(LinearPhysics):
    """A mask of each pixel mixed with the ones above and to its right: not symmetric."""

    def __init__(self, mask: torch.Tensor, **options: Any) -> None:
        super().__init__(**options)
        self.mask = mask

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        mixed = x.clone()
        mixed[:, :, 1:] += 0.3 * x[:, :, :-1]
        mixed[:, :, :, :-1] -= 0.2 * x[:, :, :, 1:]
        return self.mask * mixed

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        y = self.mask * y
        mixed = y.clone()
        mixed[:, :, :-1] += 0.3 * y[:, :, 1:]
        mixed[:, :, :, 1:] -= 0.2 * y[:, :, :, :-1]
        return mixed


class Differences(LinearPhysics):
    """Forward differences along rows: measurements of another size, whose boxes follow."""

    def __init__(self, like: torch.Tensor, **options: Any) -> None:
        super().__init__(**options)
        self.like = like

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return x[:, :, 1:] - x[:, :, :-1]

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        x = torch.zeros_like(self.like)
        x[:, :, 1:] += y
        x[:, :, :-1] -= y
        return x


class Pixelwise(Denoiser):
    """A nonlinear denoiser that sees one pixel."""

    def forward(self, x: torch.Tensor, sigma: Any = None, **_: Any) -> torch.Tensor:
        level = sigma.reshape(-1, 1, 1, 1) if isinstance(sigma, torch.Tensor) else sigma
        return 0.9 * x + 0.1 * torch.tanh(x) * level


class Convolutional(Denoiser):
    """A small network of float32 weights that sees its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.last = torch.nn.Conv2d(4, 3, 3, padding=1)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 6)

    def forward(self, x: torch.Tensor, sigma: Any = None, **_: Any) -> torch.Tensor:
        level = sigma.reshape(-1, 1, 1, 1) if isinstance(sigma, torch.Tensor) else sigma
        return 0.9 * x + 0.1 * self.last(torch.relu(self.first(x * (1 + level))))


class Messages(list[tuple[str, int]]):
    """Operation and bytes of every message that this rank sends inside a ``with``."""

    def __init__(self, ctx: DistributedContext) -> None:
        super().__init__()
        self.ledger = ctx.ledger

    def __enter__(self) -> Messages:
        self.book = self.ledger.book

        def book(operation: str, *, bytes_sent: int, **seconds: float) -> None:
            self.append((operation, bytes_sent))
            self.book(operation, bytes_sent=bytes_sent, **seconds)

        self.ledger.book = book  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.book = self.book  # type: ignore[method-assign]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """DeepInverse warns of solvers that were not run to convergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def leaves(result: Any) -> list[torch.Tensor]:
    """The tensors and numbers of a result, sharded ones gathered."""
    if isinstance(result, ShardedTensor):
        return [result.full_tensor()]
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [leaf for key in result for leaf in leaves(result[key])]
    if isinstance(result, (list, tuple)):
        return [leaf for entry in result for leaf in leaves(entry)]
    return [] if result is None else [torch.as_tensor(result)]


def compare(
    ctx: DistributedContext,
    cases: Mapping[str, Case],
    mesh: Any,
    shape: tuple[int, ...],
    *,
    rtol: float = 1e-11,
    numbers: int = 512,
    halo: int | None = None,
    setting_up: frozenset[str] = frozenset(),
) -> dict[str, list[torch.Tensor]]:
    """Assert that cases give the same sharded, and send numbers and halos only.

    Parameters
    ----------
    ctx
        The ranks.
    cases
        Programs of an image and a mask, by name.
    mesh, shape
        How the image lies, and its shape.
    rtol
        Bound on the error relative to the largest value, for each result.
    numbers
        Most bytes that one reduction sends.
    halo
        Most bytes that one exchange sends; default: a row or a column of the image.
    setting_up
        Operations of blocks that a case distributes, not counted.

    Returns
    -------
    dict of str to list of torch.Tensor
        The sharded results, gathered.
    """
    x, mask = images(shape)
    row = halo if halo is not None else 8 * shape[0] * shape[1] * max(shape[2:])
    found = {}
    for name, case in cases.items():
        where = f"{name}, {ctx.world_size} ranks, mesh {mesh}"
        with quiet(), CounterRandom(3):
            expected = leaves(case(x, mask))
        with quiet(), CounterRandom(3), Messages(ctx) as messages:
            result = case(ctx.shard(x, mesh), ctx.shard(mask, mesh))
        kinds = {operation for operation, _ in messages} - setting_up
        assert kinds <= {"all_reduce", "realign", "halo"}, f"{where}: {kinds}"
        for operation, sent in messages:
            if operation in setting_up:
                continue
            bound = numbers if operation == "all_reduce" else row
            assert sent <= bound, f"{where}: {operation} sent {sent} bytes, more than {bound}"
        found[name] = leaves(result)
        assert len(found[name]) == len(expected), where
        for mine, theirs in zip(found[name], expected, strict=True):
            assert mine.shape == theirs.shape, f"{where}: {mine.shape} {theirs.shape}"
            assert mine.dtype == theirs.dtype, f"{where}: {mine.dtype} {theirs.dtype}"
            difference = (mine - theirs).abs().double()
            error = float(difference.max() / theirs.abs().double().max().clamp(min=1e-12))
            assert error <= rtol, f"{where}: error {error:.2g}"
    return found
