"""Draws by position: any part is what it is in the whole, and the numbers are as they should be.

The statistical tests have fixed seeds: they pass or fail for good. Bounds are for chances of 1e-6
and less, so that another seed would pass too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shardinv.tensor import counter
from shardinv.tensor.counter import Place

SIZE = 200_000
UNLIKELY = 1e-6


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, 7, dtype=dtype)


def rates(shape: tuple[int, ...], place: Place) -> torch.Tensor:
    """Rates from 0 to beyond 100, which vary with the position in the whole."""
    positions = torch.arange(math.prod(place.shape)).reshape(place.shape)
    box = tuple(slice(a, a + n) for a, n in zip(place.start, shape, strict=True))
    return ((positions[box] % 23).double() ** 2) / 4


Draw = Callable[[tuple[int, ...], int, Place], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "uniform": lambda s, k, p: counter.uniform(empty(s, torch.float64), k, p),
    "uniform float32": lambda s, k, p: counter.uniform(empty(s, torch.float32), k, p),
    "uniform complex": lambda s, k, p: counter.uniform(empty(s, torch.complex128), k, p),
    "normal": lambda s, k, p: counter.normal(empty(s, torch.float64), k, p),
    "normal float32": lambda s, k, p: counter.normal(empty(s, torch.float32), k, p),
    "normal complex": lambda s, k, p: counter.normal(empty(s, torch.complex128), k, p),
    "exponential": lambda s, k, p: counter.exponential(empty(s, torch.float64), k, p),
    "integers": lambda s, k, p: counter.integers(empty(s, torch.int64), k, p, -5, 1000),
    "bits": lambda s, k, p: counter.integers(empty(s, torch.int64), k, p, 0, None),
    "bernoulli": lambda s, k, p: counter.bernoulli(empty(s, torch.float32), k, p, 0.3),
    "bernoulli map": lambda s, k, p: counter.bernoulli(
        empty(s, torch.bool), k, p, (rates(s, p) / 200).clamp(max=1)
    ),
    "poisson": lambda s, k, p: counter.poisson(rates(s, p), k, p),
    "gamma": lambda s, k, p: counter.gamma(rates(s, p) + 0.2, k, p),
}
EXACT = {"uniform", "uniform float32", "uniform complex", "integers", "bits", "poisson"}


# -- position --------------------------------------------------------------------------------------


@st.composite
def parts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape of a whole, start and shape of a part of it, perhaps empty."""
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
    start = tuple(draw(st.integers(0, n)) for n in shape)
    size = tuple(draw(st.integers(0, n - a)) for a, n in zip(start, shape, strict=True))
    return shape, start, size


@pytest.mark.parametrize("name", DRAWS)
@given(part=parts(), seed=st.integers(-(2**70), 2**70), limit=st.sampled_from([1, 3, 50, 2**17]))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_a_part_is_what_it_is_in_the_whole(
    name: str,
    part: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    seed: int,
    limit: int,
) -> None:
    shape, start, size = part
    whole = DRAWS[name](shape, seed, Place.whole(shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(counter._VALUES_AT_ONCE, "cpu", limit)
        drawn = DRAWS[name](size, seed, Place(shape, start))
    expected = whole[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
    # Logarithms and cosines may round differently in another place of a vector.
    rtol = 0.0 if name in EXACT else 4e-7 if "float32" in name else 4e-15
    torch.testing.assert_close(drawn, expected, rtol=rtol, atol=rtol)


def reference_words(seed: int, lane: int, positions: list[int]) -> list[int]:
    """The same bits in Python's integers, which don't wrap around by themselves."""
    start, step = counter._stream(seed, lane)
    unsigned = [counter.hashed(start + position * step) for position in positions]
    return [counter._signed(word) for word in unsigned]


@pytest.mark.parametrize("lane", [0, 1, 9])
def test_bits_beyond_two_billion_values(lane: int) -> None:
    shape, start = (3, 2**20, 2**13), (2, 2**20 - 2, 5)
    (piece, positions), *more = Place(shape, start).pieces((1, 2, 3), torch.device("cpu"))
    first = (2 * 2**20 + 2**20 - 2) * 2**13 + 5
    expected = [first, first + 1, first + 2, first + 2**13, first + 2**13 + 1, first + 2**13 + 2]
    assert not more
    assert piece == (slice(0, 1), slice(0, 2), slice(0, 3))
    assert positions.flatten().tolist() == expected
    assert counter.words(positions, 77, lane).flatten().tolist() == reference_words(
        77, lane, expected
    )


def test_hash_is_splitmix64() -> None:
    """The first outputs for the seed 1234567, as other implementations give them."""
    outputs = [counter.hashed(1234567 + (i + 1) * 0x9E3779B97F4A7C15) for i in range(5)]
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(st.integers(0, 7), max_size=4), st.integers(1, 40))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_pieces_are_small_and_cover_each_value_once(size: list[int], limit: int) -> None:
    covered = torch.zeros(size)
    for piece in counter._split(size, limit):
        assert covered[piece].numel() <= limit
        covered[piece] += 1
    assert bool((covered == 1).all())


def test_errors() -> None:
    with pytest.raises(ValueError, match="give an index for each axis"):
        Place((4, 4), (0,))
    with pytest.raises(ValueError, match="reaches beyond"):
        counter.uniform(torch.empty(3, 4), 0, Place((4, 4), (2, 0)))
    with pytest.raises(ValueError, match="low < high"):
        counter.integers(torch.empty(3), 0, Place.whole((3,)), 2, 2)


# -- independence ----------------------------------------------------------------------------------


def bits(seed: int, lane: int = 0, count: int = SIZE) -> torch.Tensor:
    return counter.words(torch.arange(count), seed, lane)


def centred(seed: int, lane: int = 0, count: int = SIZE) -> torch.Tensor:
    return counter._unit(torch.arange(count), seed, lane) * math.sqrt(12) - math.sqrt(3)


def test_every_bit_is_fair() -> None:
    for seed in (0, 1, 2**63):
        word = bits(seed)
        ones = torch.stack([((word >> k) & 1).sum() for k in range(64)]).double()
        deviations = (ones - SIZE / 2).abs() / math.sqrt(SIZE / 4)
        assert deviations.max() < 5.5


def test_neighbours_seeds_and_lanes_are_uncorrelated() -> None:
    """Values along rows and columns of 512, of seeds that follow one another, of two lanes."""
    u = centred(5)
    pairs = {f"lag {lag}": (u[lag:], u[:-lag]) for lag in (1, 2, 3, 64, 511, 512, 513, 4096)}
    pairs |= {f"seeds {k} and {k + 1}": (centred(k), centred(k + 1)) for k in range(12)}
    pairs |= {f"lanes 0 and {k}": (centred(5), centred(5, k)) for k in range(1, 12)}
    pairs |= {
        f"draws {k} and {k + 1}": tuple(centred(counter.derived_seed(3, k + i)) for i in (0, 1))
        for k in range(8)
    }
    for name, (a, b) in pairs.items():
        for power in (1, 2):  # the squares too: signs alone may hide a dependence
            x, y = a**power, b**power
            correlation = float(torch.corrcoef(torch.stack([x, y]))[0, 1])
            assert abs(correlation) < 5.5 / math.sqrt(len(a)), (name, power)


def test_pairs_fill_the_square_evenly() -> None:
    """Neighbours, and one place under two seeds: chi-square of 64 × 64 cells."""
    word = bits(11)
    for name, first, second in [
        ("neighbours", word[:-1], word[1:]),
        ("seeds", word, bits(12)),
        ("low bits", word[:-1] << 58, word[1:] << 58),
    ]:
        cells = counter._high_bits(first, 6) * 64 + counter._high_bits(second, 6)
        counts = torch.bincount(cells, minlength=4096)
        assert stats.chisquare(counts.numpy()).pvalue > UNLIKELY, name


def test_no_two_draws_have_one_seed() -> None:
    seeds = {counter.derived_seed(seed, number) for seed in range(200) for number in range(200)}
    assert len(seeds) == 200 * 200
    streams = {counter._stream(seed, lane) for seed in range(200) for lane in range(20)}
    assert len({start for start, _ in streams}) == len({step for _, step in streams}) == 4000
    assert all(step % 2 for _, step in streams)


# -- distributions ---------------------------------------------------------------------------------


def sample(name: str, seed: int = 1) -> torch.Tensor:
    return DRAWS[name]((SIZE,), seed, Place.whole((SIZE,)))


def test_uniform() -> None:
    assert stats.kstest(sample("uniform").numpy(), "uniform").pvalue > UNLIKELY
    assert stats.kstest(sample("uniform float32").double().numpy(), "uniform").pvalue > UNLIKELY
    parts = torch.view_as_real(sample("uniform complex"))
    for part in parts.T:
        assert stats.kstest(part.numpy(), "uniform").pvalue > UNLIKELY
    assert abs(float(torch.corrcoef(parts.T)[0, 1])) < 5.5 / math.sqrt(SIZE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_uniform_is_below_one_in_every_type(dtype: torch.dtype) -> None:
    u = counter.uniform(torch.empty(SIZE, dtype=dtype), 0, Place.whole((SIZE,)))
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    deviation = abs(float(u.double().mean()) - 0.5 + torch.finfo(dtype).eps / 4)
    assert deviation < 5.5 / math.sqrt(12 * SIZE)


def test_normal() -> None:
    z = sample("normal")
    assert stats.kstest(z.numpy(), "norm").pvalue > UNLIKELY
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)]:
        error = abs(float((z**power).mean()) - moment)
        assert error < 5.5 * math.sqrt(variance / SIZE), power
    assert torch.equal(sample("normal float32"), z.float())


def test_complex_normal_has_variance_one_in_all() -> None:
    z = sample("normal complex")
    parts = torch.view_as_real(z)
    for part in parts.T:
        assert stats.kstest(part.numpy() * math.sqrt(2), "norm").pvalue > UNLIKELY
    assert abs(float(z.abs().square().mean()) - 1) < 5.5 / math.sqrt(SIZE)
    for a, b in [parts.T, parts.T**2]:
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5.5 / math.sqrt(SIZE)


@pytest.mark.parametrize("word", [0, -1, 2**63 - 1, -(2**63), 1, 2**11, -(2**11)])
def test_extreme_bits_give_finite_numbers(monkeypatch: pytest.MonkeyPatch, word: int) -> None:
    monkeypatch.setattr(counter, "words", lambda at, seed, lane=0: torch.full_like(at, word))
    for name in ("normal", "normal float32", "normal complex", "exponential"):
        drawn = DRAWS[name]((2, 3), 0, Place.whole((2, 3)))
        assert bool(drawn.isfinite().all()), name
        assert float(drawn.abs().max()) < 40, name
    u = DRAWS["uniform"]((2, 3), 0, Place.whole((2, 3)))
    assert float(u.min()) >= 0
    assert float(u.max()) < 1


def test_exponential() -> None:
    e = sample("exponential")
    assert stats.kstest(e.numpy(), "expon").pvalue > UNLIKELY
    assert float(e.min()) > 0


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-3, 4), (0, 1000), (2**40, 2**40 + 17)])
def test_integers(low: int, high: int) -> None:
    drawn = counter.integers(empty((SIZE,), torch.int64), 3, Place.whole((SIZE,)), low, high)
    counts = torch.bincount(drawn - low, minlength=high - low)
    assert len(counts) == high - low
    assert stats.chisquare(counts.numpy()).pvalue > UNLIKELY


def test_integers_of_the_widest_range() -> None:
    drawn = counter.integers(empty((SIZE,), torch.int64), 3, Place.whole((SIZE,)), -(2**62), 2**62)
    assert stats.kstest(drawn.double().numpy() / 2**63 + 0.5, "uniform").pvalue > UNLIKELY


@pytest.mark.parametrize("chance", [0.0, 0.01, 0.5, 1.0])
def test_bernoulli(chance: float) -> None:
    hits = int(counter.bernoulli(torch.empty(SIZE), 4, Place.whole((SIZE,)), chance).sum())
    assert stats.binomtest(hits, SIZE, chance).pvalue > UNLIKELY


@pytest.mark.parametrize("rate", [1e-3, 0.1, 1.0, 4.0, 9.99, 10.0, 11.0, 30.0, 300.0, 12345.6])
def test_poisson(rate: float) -> None:
    """Chi-square of the counts, tails gathered until 5 are expected in each class."""
    rate_map = torch.full((SIZE,), rate, dtype=torch.float64)
    counts = counter.poisson(rate_map, 6, Place.whole((SIZE,))).long()
    law = stats.poisson(rate)
    low, high = int(law.ppf(1e-4)), int(law.ppf(1 - 1e-4)) + 1
    # Up to 60 classes of neighbouring counts, and the two tails.
    step = max(1, (high - low) // 60)
    edges = list(range(low, high + 1, step))
    below = torch.bucketize(counts, torch.tensor(edges))
    found = torch.bincount(below, minlength=len(edges) + 1).double().numpy()
    steps = [0.0, *(float(law.cdf(edge)) for edge in edges), 1.0]
    expected = [SIZE * (b - a) for a, b in pairwise(steps)]
    merged: list[list[float]] = []
    for have, want in zip(found, expected, strict=True):
        if merged and merged[-1][1] < 5:
            merged[-1] = [merged[-1][0] + have, merged[-1][1] + want]
        else:
            merged.append([float(have), want])
    if len(merged) > 1 and merged[-1][1] < 5:
        have, want = merged.pop()
        merged[-1] = [merged[-1][0] + have, merged[-1][1] + want]
    have, want = zip(*merged, strict=True)
    assert stats.chisquare(have, want).pvalue > UNLIKELY


@pytest.mark.parametrize("rate", [1e6, 1e9, 1e12, 1e15])
def test_poisson_of_high_rates(rate: float) -> None:
    rate_map = torch.full((SIZE,), rate, dtype=torch.float64)
    counts = counter.poisson(rate_map, 8, Place.whole((SIZE,)))
    assert torch.equal(counts, counts.floor())
    z = (counts - rate) / math.sqrt(rate)
    assert abs(float(z.mean())) < 5.5 / math.sqrt(SIZE)
    assert abs(float(z.square().mean()) - 1) < 5.5 * math.sqrt(2 / SIZE)
    # A count blurred by its own width is near enough to normal: its skewness is below 1e-3.
    shifted = (counts + counter.uniform(torch.empty_like(counts), 9, Place.whole((SIZE,)))) - rate
    assert stats.kstest((shifted / math.sqrt(rate)).numpy(), "norm").pvalue > UNLIKELY


def test_poisson_of_a_map_of_rates() -> None:
    """Rates of 0 and of both algorithms side by side: means and variances of each."""
    levels = torch.tensor([0.0, 0.5, 3.0, 9.0, 20.0, 1000.0], dtype=torch.float64)
    rate_map = levels.expand(50_000, 6)
    counts = counter.poisson(rate_map, 2, Place.whole((50_000, 6)))
    assert bool((counts[:, 0] == 0).all())
    for level, column in zip(levels[1:].tolist(), counts.T[1:], strict=True):
        assert abs(float(column.mean()) - level) < 5.5 * math.sqrt(level / 50_000)
        spread = math.sqrt((level + 2 * level**2) / 50_000)
        assert abs(float(column.var()) - level) < 5.5 * spread
    half = counter.poisson(rate_map.float(), 2, Place.whole((50_000, 6)))
    assert half.dtype == torch.float32
    assert torch.equal(half.double(), counts)


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 2.5, 200.0])
def test_gamma(shape: float) -> None:
    shapes = torch.full((SIZE // 2,), shape, dtype=torch.float64)
    drawn = counter.gamma(shapes, 12, Place.whole((SIZE // 2,)))
    assert stats.kstest(drawn.numpy(), "gamma", args=(shape,)).pvalue > UNLIKELY
