"""Draws: the random functions of torch, from counters keyed by global position.

On a sharded tensor each rank draws its box, and the boxes make up what the whole would have been:
the same for any number of ranks, mesh and layout, and never the same in two shards. Under
:class:`CounterRandom` plain tensors are drawn from the same counters. The numbers themselves come
from ``tensor.counter``; here is which function draws what, and from which seed.

Each draw has a seed of its own, which all ranks share. It is one number that rank 0 takes from
torch's default generator, told through the store: so ``torch.manual_seed`` starts the sequence
again, also with the seed it had, ranks may be seeded differently (as they are by default), and
other draws on other ranks do not matter. Every rank's generator advances by one number. From a
``generator=`` of the CPU, normal and uniform numbers are those that the undistributed program draws
(``tensor.sequence``); for other draws every rank takes a number of it, and they must be the same.
Either way the ranks
compare what they draw, shape and type included: no rank can draw alone or differently. Under
:class:`CounterRandom` seeds follow from the mode's, without a message; the ranks compare what they
have drawn when they leave it.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from shardinv.exchange import Communicator, DisagreementError, publish
from shardinv.tensor import counter
from shardinv.tensor.axes import cut_axes
from shardinv.tensor.counter import Place
from shardinv.tensor.errors import LayoutError, UnsupportedOperation
from shardinv.tensor.operands import common_layout, local_part
from shardinv.tensor.registry import name_of, named, rule
from shardinv.tensor.sequence import agree_on_state, keep_part
from shardinv.tensor.sharded import ShardedTensor

Function = Callable[..., Any]
Seeds = Callable[[str, torch.Tensor, torch.Generator | None], int]
"""Called with the function's name, the tensor to draw and the generator given: the draw's seed."""

_draws: dict[Function, Function] = {}


def _draw(*functions: Function) -> Callable[[Function], Function]:
    """Say how functions draw: ``fn(seed_of, *args, **kwargs)``."""

    def register(fn: Function) -> Function:
        for function in functions:
            _draws[function] = fn
        return fn

    return register


_RENAMED = {"input": "x", "self": "x", "from": "low", "to": "high"}


def _run(function: Function, seeds: Seeds, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = name_of(function)
    given = {_RENAMED.get(key, key): value for key, value in kwargs.items()}
    out = given.pop("out", None)
    generator = given.pop("generator", None)

    def seed_of(x: torch.Tensor) -> int:
        return seeds(name, x, generator)

    result = _draws[function](seed_of, *args, **given)
    return result if out is None else out.copy_(result)


# -- seeds -----------------------------------------------------------------------------------------


def next_number(generator: torch.Generator | None = None) -> int:
    """A number taken from a generator, by default torch's of the CPU."""
    device = generator.device if generator is not None else "cpu"
    return int(torch.randint(2**63 - 1, (1,), generator=generator, device=device).item())


def agreed_seed(name: str, x: torch.Tensor, generator: torch.Generator | None) -> int:
    """The seed of a draw of a sharded tensor, as the module says. Collective, in the store.

    Raises
    ------
    DisagreementError
        If ranks draw tensors of different shapes or types, or hold generators in different states.
    RankError
        If a rank draws nothing, or something else.
    """
    assert isinstance(x, ShardedTensor)
    number = next_number(generator)
    told = publish(
        x.sharding.comm, f"a random draw by {name}", (number, tuple(x.shape), str(x.dtype))
    )
    kinds = [kind for _, *kind in told]
    if any(kind != kinds[0] for kind in kinds):
        listed = "; ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds))
        raise DisagreementError(f"ranks draw different tensors by {name}: {listed}")
    numbers = [number for number, *_ in told]
    if generator is not None and any(number != numbers[0] for number in numbers):
        raise DisagreementError(
            f"{name} of a sharded tensor takes its seed from the generator given, whose state "
            f"differs between ranks: they drew {numbers}. Seed it with the same number on every "
            "rank and draw from it on all of them, or give none"
        )
    return numbers[0]


class CounterRandom(TorchFunctionMode):
    """Draw by global position from one seed: plain tensors as sharded ones.

    Inside, the random functions of torch draw the same values for a plain tensor, for one that is
    sharded over any ranks, and for any part. Draws with a ``generator=`` take a number from it as
    their seed, others follow from the mode's seed in the order they come. Torch's default
    generators stay where they are.

    Parameters
    ----------
    seed
        Any integer. Where sharded tensors are drawn it must be the same on every rank, and every
        rank must draw in the same order, plain tensors included. That is compared at the end, and
        on the way after 16, 32, 64, … draws of sharded tensors.

    Raises
    ------
    UnsupportedOperation
        Inside, by a random function that does not draw by position (dropout, multinomial).
    DisagreementError
        If the ranks have drawn differently; at the end, unless another error has ended the block.

    Examples
    --------
    >>> import torch
    >>> from shardinv.tensor import CounterRandom
    >>> with CounterRandom(0):
    ...     a = torch.randn(4)
    >>> with CounterRandom(0):
    ...     b = torch.empty(4).normal_()
    >>> torch.equal(a, b)
    True
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.drawn = 0
        self._records: dict[int, _Record] = {}

    def __exit__(self, exc_type: Any, *rest: Any) -> None:
        """Leave the mode; the ranks compare what they drew."""
        super().__exit__(exc_type, *rest)
        records, self._records = self._records, {}
        if exc_type is None:
            for record in records.values():
                record.compare(self)

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _draws:
            return _run(func, self._seed_of, args, kwargs)
        if func in _REFUSED and _is_random(func, args, kwargs):
            raise UnsupportedOperation(
                f"{name_of(func)} does not draw by position: call it outside CounterRandom"
            )
        return func(*args, **kwargs)

    def _seed_of(self, name: str, x: torch.Tensor, generator: torch.Generator | None) -> int:
        if generator is not None:
            if isinstance(x, ShardedTensor):
                return agreed_seed(name, x, generator)
            return next_number(generator)
        number, self.drawn = self.drawn, self.drawn + 1
        if isinstance(x, ShardedTensor):
            comm = x.sharding.comm
            self._records.setdefault(id(comm), _Record(comm)).add(self, number, name, x)
        return counter.derived_seed(self.seed, number)


class _Record:
    """What a rank has drawn of the sharded tensors of one group, under one mode."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.count = 0
        self.last = ""
        self.checksum = 0

    def add(self, mode: CounterRandom, number: int, name: str, x: ShardedTensor) -> None:
        dtype = str(x.dtype).removeprefix("torch.")
        self.last = f"draw {number} of seed {mode.seed}, {name} of {tuple(x.shape)} {dtype}"
        self.checksum = zlib.crc32(self.last.encode(), self.checksum)
        self.count += 1
        if self.count >= 16 and self.count & (self.count - 1) == 0:
            self.compare(mode)

    def compare(self, mode: CounterRandom) -> None:
        told = publish(
            self.comm,
            "what was drawn under CounterRandom",
            (self.checksum, self.count, mode.drawn, self.last),
        )
        if any(other != told[0] for other in told):
            listed = "; ".join(
                f"rank {rank}: {count} of sharded tensors, {drawn} in all, the last was {last}"
                for rank, (_, count, drawn, last) in enumerate(told)
            )
            raise DisagreementError(
                f"ranks draw differently under CounterRandom: {listed}. Give it the same seed on "
                "every rank, and draw the same on all of them, in the same order"
            )


_REFUSED = {
    *named("multinomial cauchy_ geometric_", torch, torch.Tensor),
    *named("binomial _sample_dirichlet dropout alpha_dropout feature_dropout", torch),
    *named("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout", F),
    *named("rrelu rrelu_ gumbel_softmax fractional_max_pool2d fractional_max_pool3d", F),
    *named("uniform_ normal_ kaiming_uniform_ kaiming_normal_", torch.nn.init),
}


def _is_random(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is random: of those with a ``training`` switch, only where it is on."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # built into torch, without a signature
        return True
    given.apply_defaults()
    return bool(given.arguments.get("training", True))


# -- parts -----------------------------------------------------------------------------------------


def place_of(x: torch.Tensor) -> Place:
    """Where this rank's part lies in the whole, folded axes unfolded."""
    if not isinstance(x, ShardedTensor):
        return Place.whole(x.shape)
    if x.folded is not None:
        lead = (*x.shape[:-1], *x.folded)
        return Place((*lead, *x.sharding.shape), (0,) * len(lead) + x.box.start)
    start = [0] * x.ndim
    for axis, first in zip(cut_axes(x), x.box.start, strict=True):
        start[axis] = first
    return Place(tuple(x.shape), tuple(start))


def _part(x: torch.Tensor) -> torch.Tensor:
    """This rank's part, without its graph, folded axes unfolded."""
    if not isinstance(x, ShardedTensor):
        return x.detach()
    local = x.to_local().detach()
    if x.folded is not None:
        return local.reshape(*local.shape[:-1], *x.folded, *x.box.shape)
    return local


def _like(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The tensor whose part on this rank has the given values, as one of ``x`` has."""
    if isinstance(x, ShardedTensor):
        return x.like(values.reshape(x.to_local().shape))
    return values


def _write(x: torch.Tensor, draw: Callable[[torch.Tensor, Place], Any]) -> torch.Tensor:
    """Draw in place."""
    target = x.to_local() if isinstance(x, ShardedTensor) else x
    folded = isinstance(x, ShardedTensor) and x.folded is not None
    if folded or (target.requires_grad and torch.is_grad_enabled()):
        values = torch.empty_like(_part(x), memory_format=torch.contiguous_format)
        draw(values, place_of(x))
        # Autograd refuses this for a leaf, and knows that the old values no longer count.
        target.copy_(values.reshape(target.shape))
    else:
        draw(target.detach(), place_of(x))
    return x


def _without_slope(result: torch.Tensor, *parameters: Any) -> torch.Tensor:
    """Tie a draw to its parameters with a gradient of zero, as torch does."""
    for parameter in parameters:
        if (
            isinstance(parameter, torch.Tensor)
            and parameter.requires_grad
            and torch.is_grad_enabled()
        ):
            result = result + parameter * 0
    return result


def _check(name: str, condition: Any, expected: str) -> None:
    """Raise on every rank unless all values, of all boxes, are what is expected."""
    # Of a sharded tensor ``all`` is a reduction, whose result is the same everywhere.
    fine = bool(condition.all()) if isinstance(condition, torch.Tensor) else bool(condition)
    if not fine:
        raise RuntimeError(f"{name} expects {expected}")


# -- in place --------------------------------------------------------------------------------------

_Tensor = torch.Tensor
_SeedOf = Callable[[torch.Tensor], int]


@_draw(torch.Tensor.normal_)
def _normal_(seed_of: _SeedOf, x: _Tensor, mean: float = 0.0, std: float = 1.0) -> _Tensor:
    _check("normal_", std >= 0, f"std >= 0, got {std}")
    seed = seed_of(x)
    centre = complex(mean, mean) if x.is_complex() else mean
    return _write(x, lambda out, place: counter.normal(out, seed, place).mul_(std).add_(centre))


@_draw(torch.Tensor.uniform_)
def _uniform_(seed_of: _SeedOf, x: _Tensor, low: float = 0.0, high: float = 1.0) -> _Tensor:
    _check("uniform_", low <= high, f"from <= to, got {low} and {high}")
    seed = seed_of(x)
    first = complex(low, low) if x.is_complex() else low
    return _write(
        x, lambda out, place: counter.uniform(out, seed, place).mul_(high - low).add_(first)
    )


@_draw(torch.Tensor.exponential_)
def _exponential_(seed_of: _SeedOf, x: _Tensor, lambd: float = 1.0) -> _Tensor:
    _check("exponential_", lambd > 0, f"lambd > 0, got {lambd}")
    seed = seed_of(x)
    return _write(x, lambda out, place: counter.exponential(out, seed, place).div_(lambd))


@_draw(torch.Tensor.log_normal_)
def _log_normal_(seed_of: _SeedOf, x: _Tensor, mean: float = 1.0, std: float = 2.0) -> _Tensor:
    _check("log_normal_", std > 0, f"std > 0, got {std}")
    seed = seed_of(x)
    return _write(
        x, lambda out, place: counter.normal(out, seed, place).mul_(std).add_(mean).exp_()
    )


@_draw(torch.Tensor.random_)
def _random_(
    seed_of: _SeedOf, x: _Tensor, low: int | None = None, high: int | None = None
) -> _Tensor:
    if high is None:
        low, high = 0, low
    first, stop = low or 0, _largest(x.dtype) + 1 if high is None else high
    seed = seed_of(x)
    return _write(x, lambda out, place: counter.integers(out, seed, place, first, stop))


def _largest(dtype: torch.dtype) -> int:
    """Up to where a type holds every integer."""
    if dtype == torch.bool:
        return 1
    return round(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max


@_draw(torch.Tensor.bernoulli_)
def _bernoulli_(seed_of: _SeedOf, x: _Tensor, p: _Tensor | float = 0.5) -> _Tensor:
    if isinstance(p, ShardedTensor) and not isinstance(x, ShardedTensor):
        raise LayoutError(
            "bernoulli_ of a replicated tensor with sharded chances: shard it (ctx.shard(t)), or "
            "gather them (ctx.gather(p))"
        )
    if isinstance(x, ShardedTensor):
        common_layout(torch.bernoulli, x, p)
    _check("bernoulli_", (p >= 0) & (p <= 1), "chances in [0, 1]")
    seed = seed_of(x)

    def draw(out: _Tensor, place: Place) -> None:
        chances: _Tensor | float = p
        if isinstance(p, torch.Tensor):
            chances = local_part(torch.bernoulli, p, x) if isinstance(x, ShardedTensor) else p
            own = x.to_local().shape if isinstance(x, ShardedTensor) else x.shape
            chances = chances.detach().expand(own).reshape(out.shape)
        counter.bernoulli(out, seed, place, chances)

    return _without_slope(_write(x, draw))


# -- like a tensor ---------------------------------------------------------------------------------


@_draw(torch.randn_like)
def _randn_like(
    seed_of: _SeedOf, x: _Tensor, *, requires_grad: bool = False, **options: Any
) -> _Tensor:
    return _normal_(seed_of, torch.empty_like(x, **options)).requires_grad_(requires_grad)


@_draw(torch.rand_like)
def _rand_like(
    seed_of: _SeedOf, x: _Tensor, *, requires_grad: bool = False, **options: Any
) -> _Tensor:
    return _uniform_(seed_of, torch.empty_like(x, **options)).requires_grad_(requires_grad)


@_draw(torch.randint_like)
def _randint_like(
    seed_of: _SeedOf, x: _Tensor, low: int = 0, high: int | None = None, **options: Any
) -> _Tensor:
    if high is None:
        low, high = 0, low
    return _random_(seed_of, torch.empty_like(x, **options), int(low), int(high))


@_draw(torch.bernoulli, torch.Tensor.bernoulli)
def _bernoulli(seed_of: _SeedOf, x: _Tensor, p: float | None = None) -> _Tensor:
    out = torch.empty_like(x, requires_grad=False)
    return _without_slope(_bernoulli_(seed_of, out, x.detach() if p is None else p), x)


@_draw(torch.poisson)
def _poisson(seed_of: _SeedOf, x: _Tensor) -> _Tensor:
    _check("poisson", torch.isfinite(x.detach()) & (x.detach() >= 0), "finite rates >= 0")
    counts = counter.poisson(_part(x), seed_of(x), place_of(x))
    return _without_slope(_like(x, counts), x)


@_draw(torch._standard_gamma)
def _standard_gamma(seed_of: _SeedOf, x: _Tensor) -> _Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        raise UnsupportedOperation(
            "a gamma draw by position has no gradient with respect to its shape: detach it"
        )
    _check("_standard_gamma", x > 0, "shapes > 0")
    return _like(x, counter.gamma(_part(x), seed_of(x), place_of(x)))


@_draw(torch.normal)
def _normal(
    seed_of: _SeedOf,
    mean: _Tensor | float = 0.0,
    std: _Tensor | float = 1.0,
    size: Any = None,
    **options: Any,
) -> _Tensor:
    _check("normal", std >= 0, "std >= 0")
    if not isinstance(mean, torch.Tensor) and not isinstance(std, torch.Tensor):
        return _randn(seed_of, size, **options) * std + mean
    with torch.no_grad():
        shaped: Any = mean + std
        values = _normal_(seed_of, torch.empty_like(shaped)) * std + mean
    return _without_slope(values, mean, std)


# -- plain ones of a given size --------------------------------------------------------------------


def _empty(size: tuple[Any, ...], options: dict[str, Any]) -> _Tensor:
    if options.get("size") is not None:
        size = (options.pop("size"),)
    shape = size if not size or isinstance(size[0], int) else size[0]
    return torch.empty(tuple(shape), **{**options, "requires_grad": False})


@_draw(torch.randn)
def _randn(seed_of: _SeedOf, *size: Any, requires_grad: bool = False, **options: Any) -> _Tensor:
    return _normal_(seed_of, _empty(size, options)).requires_grad_(requires_grad)


@_draw(torch.rand)
def _rand(seed_of: _SeedOf, *size: Any, requires_grad: bool = False, **options: Any) -> _Tensor:
    return _uniform_(seed_of, _empty(size, options)).requires_grad_(requires_grad)


@_draw(torch.randint)
def _randint(seed_of: _SeedOf, *bounds: Any, **options: Any) -> _Tensor:
    listed = list(bounds)
    size = options.pop("size") if "size" in options else listed.pop()
    high = options.pop("high") if "high" in options else listed.pop()
    low = options.pop("low") if "low" in options else (listed.pop() if listed else 0)
    out = _empty((size,), {"dtype": torch.int64, **options})
    return _random_(seed_of, out, int(low), int(high))


@_draw(torch.randperm)
def _randperm(seed_of: _SeedOf, n: int, **options: Any) -> _Tensor:
    keys = _empty(((n,),), {**options, "dtype": torch.int64})
    counter.integers(keys, seed_of(keys), Place.whole((n,)), 0, None)
    return keys.argsort().to(options.get("dtype") or torch.int64)


# -- on sharded tensors ----------------------------------------------------------------------------


_OF_A_SIZE = {torch.randn, torch.rand, torch.randint, torch.randperm}


@rule(*(function for function in _draws if function not in _OF_A_SIZE))
def drawn(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draw this rank's part."""
    generator = kwargs.get("generator")
    if function in _IN_SEQUENCE and _has_sequence(args[0], generator):
        return _draw_in_sequence(function, args, kwargs)
    return _run(function, agreed_seed, args, kwargs)


_IN_SEQUENCE = {
    torch.Tensor.normal_: torch.Tensor.normal_,
    torch.Tensor.uniform_: torch.Tensor.uniform_,
    torch.randn_like: torch.Tensor.normal_,
    torch.rand_like: torch.Tensor.uniform_,
}


def _has_sequence(x: torch.Tensor, generator: torch.Generator | None) -> bool:
    """Whether a draw can be the undistributed one: of a generator that counts one by one."""
    return (
        generator is not None
        and generator.device.type == "cpu"
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
    )


def _draw_in_sequence(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x: Any = args[0]
    options = dict(kwargs)
    generator = options.pop("generator")
    agree_on_state(name_of(function), x, generator)
    fill = _IN_SEQUENCE[function]
    parameters: tuple[Any, ...] = ()
    if fill is function:
        target = x
        parameters = args[1:]
    else:
        target = torch.empty_like(x, **{k: v for k, v in options.items() if k != "requires_grad"})
    named_parameters = options if fill is function else {}
    values = torch.empty_like(_part(target), memory_format=torch.contiguous_format)
    keep_part(
        values,
        place_of(target),
        lambda piece: fill(piece, *parameters, generator=generator, **named_parameters),
    )
    local = target.to_local()
    local.copy_(values.reshape(local.shape))
    return target.requires_grad_() if options.get("requires_grad") else target


@rule(torch.broadcast_tensors)
def broadcast(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensors expanded to one shape: a plain one becomes sharded."""
    tensors = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    lead = common_layout(function, tensors)
    return tuple(
        lead.like(part)
        for part in torch.broadcast_tensors(*(local_part(function, t, lead) for t in tensors))
    )


@rule(torch._is_all_true)
def all_true(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Whether all values are true, as the distributions of torch ask."""
    return args[0].all()
