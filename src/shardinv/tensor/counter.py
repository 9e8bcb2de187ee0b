"""Random numbers keyed by position: a value depends on a seed and its place in the whole tensor.

Any part of a tensor can be drawn by itself, on any rank, in any order, and is what it would be in
the whole. Here are the draws on plain tensors; which seed a draw takes, and what functions of torch
come here, is in ``rules.random``.

The bits are SplitMix64's (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014): a hash of ``start + position * step``, with a start and an odd step of its own for
each seed and each *lane*; a value that needs several words takes one of each lane. Everything is
computed in pieces of bounded size, in float64, and is the same to rounding on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)

_VALUES_AT_ONCE = {"cpu": 2**17, "cuda": 2**22}
"""On a CPU few enough to stay in its cache, on an accelerator enough to keep it busy."""

Positions = torch.Tensor
"""int64 positions in the whole tensor, row-major."""


# -- which values ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a part lies in a tensor.

    Parameters
    ----------
    shape
        Shape of the whole.
    start
        Index of the part's first value along each axis.

    Raises
    ------
    ValueError
        If the two have different numbers of axes.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.start):
            raise ValueError(
                f"a part that starts at {self.start} of a tensor of shape {self.shape}: give an "
                "index for each axis"
            )

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Place:
        """The place of a tensor that is no part of another."""
        return cls(tuple(shape), (0,) * len(shape))

    def pieces(
        self, size: Sequence[int], device: torch.device
    ) -> Iterator[tuple[tuple[slice, ...], Positions]]:
        """Go through a part of the given shape in pieces of bounded size.

        Yields
        ------
        tuple of slice
            The piece, within the part.
        torch.Tensor
            The positions of its values in the whole, in the piece's shape.

        Raises
        ------
        ValueError
            If the part reaches beyond the whole.
        """
        ends = [a + n for a, n in zip(self.start, size, strict=True)]
        if any(end > n for end, n in zip(ends, self.shape, strict=True)):
            raise ValueError(
                f"a part of shape {tuple(size)} that starts at {self.start} reaches beyond a "
                f"tensor of shape {self.shape}"
            )
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        for piece in _split(size, _VALUES_AT_ONCE.get(device.type, 2**20)):
            positions = torch.zeros((1,) * len(piece), dtype=torch.int64, device=device)
            for axis, (cut, start, stride) in enumerate(
                zip(piece, self.start, strides, strict=True)
            ):
                index = torch.arange(start + cut.start, start + cut.stop, device=device)
                others = len(piece) - 1 - axis
                positions = positions + (index * stride).view((-1,) + (1,) * others)
            yield piece, positions


def _split(size: Sequence[int], limit: int) -> Iterator[tuple[slice, ...]]:
    """Cut a shape into boxes of at most ``limit`` values, whole along the last axes."""
    if 0 in size:
        return
    # The first axes are gone through one by one, one axis in steps, the rest is taken whole.
    axis = len(size)
    inner = 1
    while axis > 0 and inner * size[axis - 1] <= limit:
        axis -= 1
        inner *= size[axis]
    if axis == 0:
        yield tuple(slice(0, n) for n in size)
        return
    axis -= 1
    step = max(1, limit // inner)
    whole = tuple(slice(0, n) for n in size[axis + 1 :])
    for outer in product(*(range(n) for n in size[:axis])):
        for start in range(0, size[axis], step):
            ones = tuple(slice(i, i + 1) for i in outer)
            yield (*ones, slice(start, min(start + step, size[axis])), *whole)


# -- bits ------------------------------------------------------------------------------------------


def hashed(z: int) -> int:
    """SplitMix64's hash of a 64-bit number: a bijection."""
    z %= _WORD
    for shift, factor in zip(_SHIFTS, (*_FACTORS, 1), strict=True):
        z = ((z ^ (z >> shift)) * factor) % _WORD
    return z


def derived_seed(seed: int, number: int) -> int:
    """The seed of the draw of a number, of a sequence of draws that a seed starts."""
    return hashed(hashed(seed) + (number + 1) * _GOLDEN)


@lru_cache(maxsize=1024)
def _stream(seed: int, lane: int) -> tuple[int, int]:
    """Start and step of a lane, as int64 numbers.

    The steps differ, so that the words of two streams are not one sequence that is shifted.
    """
    base = hashed(seed ^ _GOLDEN)
    start = hashed(base + (2 * lane + 1) * _GOLDEN)
    step = hashed(base + (2 * lane + 2) * _GOLDEN) | 1
    if (step ^ (step >> 1)).bit_count() < 24:  # too regular: as in the paper
        step ^= 0xAAAAAAAAAAAAAAAA
    return _signed(start), _signed(step)


def _signed(z: int) -> int:
    return z - _WORD if z >= _WORD // 2 else z


def words(positions: Positions, seed: int, lane: int = 0) -> torch.Tensor:
    """64 random bits for each position, as int64."""
    start, step = _stream(seed, lane)
    # int64 products and sums wrap around, as they should.
    z = (positions * step).add_(start)
    scratch = torch.empty_like(z)
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None), strict=True):
        torch.bitwise_right_shift(z, shift, out=scratch)
        z.bitwise_xor_(scratch.bitwise_and_(2 ** (64 - shift) - 1))  # torch's shift copies the sign
        if factor is not None:
            z.mul_(_signed(factor))
    return z


def _high_bits(word: torch.Tensor, count: int) -> torch.Tensor:
    return (word >> (64 - count)).bitwise_and_(2**count - 1)


def _unit(positions: Positions, seed: int, lane: int, digits: int = 53) -> torch.Tensor:
    """Uniform in [0, 1), float64, in steps of 2^-digits."""
    return _high_bits(words(positions, seed, lane), digits).double().mul_(0.5**digits)


def _open_unit(positions: Positions, seed: int, lane: int) -> torch.Tensor:
    """Uniform in (0, 1), float64: the middles of 2^52 intervals, which float64 holds exactly."""
    return _high_bits(words(positions, seed, lane), 52).double().add_(0.5).mul_(0.5**52)


# -- draws of values that depend on nothing else ---------------------------------------------------


def _filled(
    out: torch.Tensor, place: Place, values: Callable[[Positions], torch.Tensor]
) -> torch.Tensor:
    for piece, positions in place.pieces(out.shape, out.device):
        out[piece] = values(positions)
    return out


def uniform(out: torch.Tensor, seed: int, place: Place) -> torch.Tensor:
    """Fill with numbers in [0, 1), in steps that the type can hold; both parts of complex ones.

    Parameters
    ----------
    out
        The part, of a floating-point or complex type, written in place.
    seed
        Any integer.
    place
        Where the part lies in the whole.

    Returns
    -------
    torch.Tensor
        ``out``, as of every function below.
    """
    digits = _digits(out.dtype)
    if out.is_complex():
        return _filled(
            out,
            place,
            lambda at: torch.complex(_unit(at, seed, 0, digits), _unit(at, seed, 1, digits)),
        )
    return _filled(out, place, lambda at: _unit(at, seed, 0, digits))


def _digits(dtype: torch.dtype) -> int:
    """Bits of a type's fraction, the hidden one included."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def normal(out: torch.Tensor, seed: int, place: Place) -> torch.Tensor:
    """Fill with standard normal numbers; complex ones have variance 1 in all.

    Notes
    -----
    Box and Muller's: exact but for the resolution of two uniform numbers of 53 bits, which ends at
    8.6 standard deviations. The complex number's two parts are one pair's.
    """
    complex_dtype = torch.complex128 if out.is_complex() else None
    return _filled(out, place, lambda at: _normal(at, seed, 0, complex_dtype))


def _normal(
    positions: Positions, seed: int, lane: int, complex_dtype: torch.dtype | None = None
) -> torch.Tensor:
    radius = _high_bits(words(positions, seed, lane), 53).add_(1).double().mul_(0.5**53)
    radius.log_().mul_(-2 if complex_dtype is None else -1).sqrt_()
    angle = _unit(positions, seed, lane + 1).mul_(2 * math.pi)
    if complex_dtype is None:
        return radius.mul_(angle.cos_())
    return torch.polar(radius, angle)


def exponential(out: torch.Tensor, seed: int, place: Place) -> torch.Tensor:
    """Fill with exponentially distributed numbers of mean 1, above 0 as far as the type can."""
    return _filled(out, place, lambda at: _open_unit(at, seed, 0).log_().neg_())


def integers(
    out: torch.Tensor, seed: int, place: Place, low: int, high: int | None
) -> torch.Tensor:
    """Fill with integers in [low, high), or with all 64 bits where ``high`` is None.

    Notes
    -----
    The remainder of 63 bits: the odds of two numbers differ by at most (high - low) / 2^63.

    Raises
    ------
    ValueError
        If the range is empty or has more than 2^63 numbers.
    """
    if high is None:
        return _filled(out, place, lambda at: words(at, seed))
    count = high - low
    if not 0 < count <= 2**63:
        raise ValueError(f"random integers need low < high, got {low} and {high}")

    def values(at: Positions) -> torch.Tensor:
        bits = _high_bits(words(at, seed), 63)
        return (bits if count == 2**63 else bits.remainder_(count)).add_(low)

    return _filled(out, place, values)


# -- draws whose distribution varies from value to value -------------------------------------------


def bernoulli(
    out: torch.Tensor, seed: int, place: Place, probability: torch.Tensor | float
) -> torch.Tensor:
    """Fill with 1 where a chance falls, else 0.

    Parameters
    ----------
    out, seed, place
        As for :func:`uniform`; any type.
    probability
        In [0, 1]: one number, or a tensor of the part's shape.
    """
    for piece, positions in place.pieces(out.shape, out.device):
        chance = probability[piece] if isinstance(probability, torch.Tensor) else probability
        out[piece] = _unit(positions, seed, 0) < chance
    return out


def poisson(rate: torch.Tensor, seed: int, place: Place) -> torch.Tensor:
    """Counts of the given rates.

    Parameters
    ----------
    rate
        The part, floating-point, finite and not negative.
    seed, place
        As for :func:`uniform`.

    Returns
    -------
    torch.Tensor
        Of the same shape and type.

    Notes
    -----
    Rates below 10 by inversion of one uniform number, others by transformed rejection (Hörmann,
    "The transformed rejection method for generating Poisson random variables", Insurance:
    Mathematics and Economics 12, 1993: algorithm PTRS). Attempt k takes the lanes 2k and 2k + 1.
    """
    out = torch.empty_like(rate)
    for piece, positions in place.pieces(rate.shape, rate.device):
        lam = rate[piece].double()
        counts = torch.zeros_like(lam)
        small = lam < 10
        for chosen, draw in ((small & (lam > 0), _poisson_small), (~small, _poisson_large)):
            if bool(chosen.any()):
                counts[chosen] = draw(lam[chosen], positions[chosen], seed)
        out[piece] = counts
    return out


def _poisson_small(lam: torch.Tensor, positions: Positions, seed: int) -> torch.Tensor:
    """Where the distribution function passes a uniform number, gone through from 0 upwards."""
    counts = torch.zeros_like(lam)
    pending = torch.arange(lam.numel(), device=lam.device)
    left = _unit(positions, seed, 0)
    odds = torch.exp(-lam)
    count = 0
    while True:
        above = left >= odds
        counts[pending[~above]] = count
        left = left - odds
        pending, lam, left, odds = (t[above] for t in (pending, lam, left, odds))
        count += 1
        # 2^-53 is the last step of a uniform number: beyond 70 there is less than that for rate 10,
        # and what rounding has left over ends here.
        if not pending.numel() or count > 70:
            break
        odds = odds * (lam / count)
    counts[pending] = count
    return counts


def _poisson_large(lam: torch.Tensor, positions: Positions, seed: int) -> torch.Tensor:
    counts = torch.zeros_like(lam)
    pending = torch.arange(lam.numel(), device=lam.device)
    attempt = 0
    while pending.numel():
        b = 0.931 + 2.53 * lam.sqrt()
        a = -0.059 + 0.02483 * b
        u = _open_unit(positions, seed, 2 * attempt) - 0.5
        v = _open_unit(positions, seed, 2 * attempt + 1)
        us = 0.5 - u.abs()
        count = torch.floor((2 * a / us + b) * u + lam + 0.43)
        taken = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
        possible = (count >= 0) & ((us >= 0.013) | (v <= us)) & ~taken
        scale = 1.1239 + 1.1328 / (b - 3.4)
        bound = torch.log(v * scale / (a / (us * us) + b))
        taken |= possible & (bound <= _log_poisson(count.clamp(min=0), lam))
        counts[pending[taken]] = count[taken]
        pending, lam, positions = pending[~taken], lam[~taken], positions[~taken]
        attempt += 1
    return counts


def _log_poisson(count: torch.Tensor, lam: torch.Tensor) -> torch.Tensor:
    """Logarithm of the probability of a count.

    Large counts by Stirling's series about the rate: the plain formula is a difference of numbers
    as large as the count times its logarithm.
    """
    plain = count * torch.log(lam) - lam - torch.lgamma(count + 1)
    n = count.clamp(min=1)
    series = (
        (n - lam) + n * torch.log1p((lam - n) / n) - 0.5 * torch.log(2 * math.pi * n) - 1 / (12 * n)
    )
    return torch.where(count > 1e4, series, plain)


def gamma(shape: torch.Tensor, seed: int, place: Place) -> torch.Tensor:
    """Numbers of gamma distributions of scale 1.

    Parameters
    ----------
    shape
        The distributions' shapes, above 0, one for each value of the part; floating-point.
    seed, place
        As for :func:`uniform`.

    Notes
    -----
    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26, 2000. Lane 0
    is for shapes below 1, attempt k takes the lanes 3k + 1 to 3k + 3.
    """
    out = torch.empty_like(shape)
    tiny = torch.finfo(shape.dtype).tiny
    for piece, positions in place.pieces(shape.shape, shape.device):
        alpha = shape[piece].double().flatten()
        at = positions.expand(shape[piece].shape).flatten()
        power = torch.where(alpha < 1, _open_unit(at, seed, 0).log_() / alpha, 0.0)
        values = _gamma(torch.where(alpha < 1, alpha + 1, alpha), at, seed) * power.exp_()
        out[piece] = values.clamp_(min=tiny).view(shape[piece].shape)
    return out


def _gamma(alpha: torch.Tensor, positions: Positions, seed: int) -> torch.Tensor:
    values = torch.zeros_like(alpha)
    pending = torch.arange(alpha.numel(), device=alpha.device)
    attempt = 0
    while pending.numel():
        d = alpha - 1 / 3
        x = _normal(positions, seed, 3 * attempt + 1)
        v = (1 + x / (9 * d).sqrt_()) ** 3
        u = _open_unit(positions, seed, 3 * attempt + 3)
        bound = 0.5 * x * x + d - d * v + d * torch.log(v.clamp(min=1e-300))
        taken = (v > 0) & (torch.log(u) < bound)
        values[pending[taken]] = (d * v)[taken]
        pending, alpha, positions = pending[~taken], alpha[~taken], positions[~taken]
        attempt += 1
    return values
