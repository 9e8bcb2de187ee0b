"""``distribute``: the one verb that users need. It recognises the object and builds its block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from deepinv.loss import Loss
from deepinv.models import Denoiser
from deepinv.optim import BaseOptim, DataFidelity
from deepinv.optim.data_fidelity import StackedPhysicsDataFidelity
from deepinv.optim.prior import Prior
from deepinv.physics import Physics
from deepinv.training import Trainer
from torch import nn

from shardinv.context import DistributedContext
from shardinv.denoise import DistributedProcessing, TilingOptions, distribute_prior
from shardinv.denoise.memory import parse_memory
from shardinv.fidelity import DistributedDataFidelity
from shardinv.physics.build import distribute_physics
from shardinv.training import (
    SOLVERS,
    average_gradients,
    distribute_loss,
    distribute_solver,
    distribute_trainer,
    distribute_unrolled,
    is_unrolled,
)

TYPES = (
    "auto",
    "physics",
    "linear_physics",
    "data_fidelity",
    "denoiser",
    "prior",
    "module",
    "solver",
    "loss",
    "trainer",
    "parameters",
)
GATHER_STRATEGIES = ("naive", "concatenated", "broadcast")

_TILING = {
    "patch_size": 256,
    "overlap": 64,
    "max_batch_size": None,
    "tiling_dims": None,
    "checkpoint_batches": "auto",
    "stride": None,
    "memory": None,
}
_CHECKPOINT = {"checkpoint_use_reentrant": False, "checkpoint_preserve_rng_state": True}
_OPERATORS = {"num_operators": None, "factory_kwargs": None, "reduction": None}
_SPACE = {"strategy": None, "mesh": None, "align": 1}
_DEFAULTS: dict[str, Any] = {
    **_TILING,
    **_CHECKPOINT,
    **_OPERATORS,
    **_SPACE,
    "dtype": None,
    "gather_strategy": "concatenated",
    "tiling_strategy": None,
    "checkpoint": None,
    "costs": None,
}
_NETWORK = {*_TILING, *_CHECKPOINT, "tiling_strategy", "dtype"}
_MEANT_FOR = {
    "physics": {*_OPERATORS, *_SPACE, "dtype", "gather_strategy", "costs"},
    "data_fidelity": set(_OPERATORS),
    "denoiser": {*_NETWORK, "factory_kwargs"},
    "prior": _NETWORK,
    "module": {*_NETWORK, "checkpoint"},
    "solver": set(),
    "loss": set(),
    "trainer": set(),
    "parameters": set(),
}


def distribute(
    object: Any,
    ctx: DistributedContext,
    *,
    type_object: str | None = "auto",
    **options: Any,
) -> Any:
    """Share an object of DeepInverse out to the ranks.

    Parameters
    ----------
    object
        What to distribute; the result stands in for it:

        * operators: a ``StackedPhysics``, a ``StackedLinearPhysics``, a list of ``Physics``, or a
          factory ``factory(index, device, factory_kwargs)`` with ``num_operators``, called only on
          the rank that owns the operator (unless ``strategy="space"``, where each rank has all);
        * a single operator whose output pixel depends on a neighbourhood: it runs by space;
        * a fidelity of ``deepinv.optim`` or ``deepinv.sampling``, a ``StackedPhysicsDataFidelity``,
          a list, or a factory with ``num_operators`` and ``type_object="data_fidelity"``;
        * a ``Denoiser``, or any network that keeps the image's shape where tile options or
          ``type_object="denoiser"`` are given: it runs on overlapping tiles;
        * a ``Prior``: its network is distributed;
        * a solver of ``deepinv.optim`` with ``unfold=True``, or a deep equilibrium model: in place,
          its fidelity and priors too;
        * another solver of ``deepinv.optim`` or a sampler of ``deepinv.sampling``: in place; what
          it makes lies on the ranks as its iterate, its fidelity, priors and networks stay as they
          are;
        * a loss of ``deepinv.loss``: in place; its random draws are rank 0's on every rank, and it
          takes the measurements of a stack and sharded images;
        * a ``deepinv.Trainer``: in place; one that trains a distributed model is so by itself;
        * a ``Parameter`` or a list of them, used by ranks on data of their own: gradients are
          averaged.
    ctx
        The ranks.
    type_object
        What the object is, where it can't be told: ``"physics"``, ``"linear_physics"``,
        ``"data_fidelity"``, ``"denoiser"``, ``"prior"``, ``"module"`` (a solver with
        ``unfold=True``), ``"solver"``, ``"loss"``, ``"trainer"``,
        ``"parameters"``.
    num_operators : int
        How many operators or fidelities a factory makes.
    factory_kwargs : mapping
        Handed to a factory as its third argument.
    reduction : str
        How a stack's adjoint combines its operators: ``"sum"``, ``"mean"``, ``"none"``; default:
        the stack's own, or a sum.
    costs : sequence of float
        Cost of each operator, by which they are dealt; default: the size of their parameters.
    strategy : str
        ``"operator"``: each rank applies the operators it owns to the whole image. ``"space"``:
        each rank applies all operators to its box, and halos are sent; for operators that depend on
        a neighbourhood (blur, down-sampling, masks, their compositions). Default: by space where
        the image is sharded and all operators allow it, else by operator; a factory's by operator.
    mesh, align
        How images are cut for ``strategy="space"`` where they aren't sharded, as for ``ctx.shard``.
    dtype : torch.dtype
        Type to convert operators or the network to; default: left as they are.
    gather_strategy : str
        ``"naive"``, ``"concatenated"`` or ``"broadcast"``, for compatibility: measurements are
        gathered in one message to each other rank in all three.
    patch_size, overlap : int or tuple of int
        Largest core of a tile, and its halo on each interior side, in pixels; default 256 and 64.
    max_batch_size : int
        Most tiles in one call of the network; default: chosen for the device.
    tiling_dims : int or tuple of int
        Axes that are cut, of ``(B, C, *spatial)``; default: all spatial ones.
    stride : int
        Tiles start at multiples of it; default: what is known of the network.
    checkpoint : str
        Of an unrolled solver, what the backward pass computes anew: ``"never"`` anything,
        ``"tiles"``, activations batch by batch of tiles, ``"iterations"``, whole iterations,
        ``"both"``, or ``"auto"`` (default): the first of these that fits ``memory``. What is chosen
        in the first step that is trained, and the peak it predicts, are printed.
    checkpoint_batches : str
        Of a network, whether the backward pass computes activations anew, batch by batch:
        ``"always"``, ``"never"`` or ``"auto"`` (default), where keeping them takes more than
        ``memory``.
    memory : int or str
        Bytes that activations may take on each rank, also as ``"8GB"`` or ``"512MiB"``; default:
        most of what is left when a step is trained.
    checkpoint_preserve_rng_state : bool
        Whether recomputing draws the same random numbers; default True.
    checkpoint_use_reentrant : bool
        For compatibility; False is the only value.
    tiling_strategy
        For compatibility; None is the only value.

    Returns
    -------
    object
        An instance of the same DeepInverse base class, with the same ``state_dict`` keys.

    Raises
    ------
    TypeError
        If an option is unknown or has no meaning for the object.
    ValueError
        If an option's value makes no sense, or the object's type cannot be told.

    Examples
    --------
    >>> from deepinv.optim import L2
    >>> from shardinv import DistributedContext, distribute
    >>> with DistributedContext() as ctx:
    ...     fidelity = distribute(L2(), ctx)
    """
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise TypeError(
            f"distribute() has no option {', '.join(unknown)}; "
            f"it has {', '.join(sorted(_DEFAULTS))}"
        )
    if not isinstance(ctx, DistributedContext):
        raise TypeError(f"ctx must be a shardinv.DistributedContext, got a {type(ctx).__name__}")
    kind = _kind(object, type_object, options)
    meant = _MEANT_FOR["physics" if kind == "linear_physics" else kind]
    # Not one that has its default value, as in a script with one set of options for all its calls.
    strangers = sorted(
        name for name in set(options) - meant if not _is_default(name, options[name])
    )
    if strangers:
        raise TypeError(
            f"{', '.join(strangers)} has no meaning for {kind.replace('_', ' ')} "
            f"({type(object).__name__}); its options are {', '.join(sorted(meant)) or 'none'}"
        )
    given = {**_DEFAULTS, **options}
    check_gather_strategy(given["gather_strategy"])
    if kind in ("physics", "linear_physics"):
        return distribute_physics(
            object,
            ctx,
            linear=kind == "linear_physics",
            **{name: given[name] for name in (*_OPERATORS, *_SPACE, "costs", "dtype")},
        )
    if kind == "solver":
        return distribute_solver(object)
    if kind == "loss":
        return distribute_loss(object, ctx)
    if kind == "trainer":
        return distribute_trainer(object, ctx)
    if kind == "data_fidelity":
        return _distribute_fidelity(object, ctx, given)
    if kind == "parameters":
        if not isinstance(object, (nn.Parameter, Sequence)):
            object = list(object)
        average_gradients([object] if isinstance(object, nn.Parameter) else object, ctx)
        return object
    tiling = _tiling_options(given)
    tiled = any(name in options and not _is_default(name, options[name]) for name in _NETWORK)

    def network(module: Any) -> DistributedProcessing:
        # The solver around it decides what is computed anew.
        options = replace(tiling, checkpoint_batches="auto") if kind == "module" else tiling
        return _distribute_network(module, ctx, options, given)

    if kind == "prior":
        return distribute_prior(object, ctx, network, tiled)
    if kind == "module":
        return distribute_unrolled(
            object,
            ctx,
            lambda term: _distribute_fidelity(term, ctx, _DEFAULTS),
            lambda prior: distribute_prior(prior, ctx, network, tiled=False),
            checkpoint=given["checkpoint"] or _OF_BATCHES[tiling.checkpoint_batches],
            memory=tiling.memory,
        )
    if not isinstance(object, nn.Module):
        object = object(ctx.rank, ctx.device, given["factory_kwargs"])
    return network(object)


# What asks an unrolled solver for the same as an option of its networks.
_OF_BATCHES = {"always": "tiles", "never": "never", "auto": "auto"}


def _is_default(name: str, value: Any) -> bool:
    """Whether an option asks for nothing: it has its default value, or DeepInverse's."""
    defaults = (_DEFAULTS[name], torch.float32) if name == "dtype" else (_DEFAULTS[name],)
    return any(value is default for default in defaults) or (
        isinstance(value, (int, str)) and value in defaults
    )


def check_gather_strategy(strategy: str) -> None:
    """Raise a ``ValueError`` unless the strategy is one of those that are accepted."""
    if strategy not in GATHER_STRATEGIES:
        raise ValueError(
            f"gather_strategy must be one of {', '.join(GATHER_STRATEGIES)}, got {strategy!r}"
        )


# What an object may be whose type is named, and whether a factory of it will do.
_NAMED: dict[str, tuple[type | tuple[type, ...], str, bool]] = {
    "physics": ((Physics, Sequence), "a Physics, a list of operators", True),
    "linear_physics": ((Physics, Sequence), "a Physics, a list of operators", True),
    "data_fidelity": ((DataFidelity, Sequence), "a DataFidelity, a list of them", True),
    "denoiser": (nn.Module, "a network", True),
    "prior": (Prior, "a Prior", False),
    "solver": (SOLVERS, "a solver or a sampler", False),
    "loss": (Loss, "a Loss of deepinv.loss, such as SupLoss(metric)", False),
    "trainer": (Trainer, "a Trainer", False),
    "parameters": ((nn.Parameter, Iterable), "a Parameter or a list of them", False),
}


def _check_named(object: Any, kind: str) -> None:
    if kind not in _NAMED:
        return
    types, words, factory = _NAMED[kind]
    if not isinstance(object, types) and not (
        factory and callable(object) and not isinstance(object, nn.Module)
    ):
        raise TypeError(
            f"type_object={kind!r} needs {words}{' or a factory' if factory else ''}, "
            f"got a {type(object).__name__}"
        )


def _kind(object: Any, type_object: str | None, options: Mapping[str, Any]) -> str:
    """What the object is: one of the types, ``"auto"`` excepted."""
    wanted = "auto" if type_object is None else type_object
    if wanted not in TYPES:
        raise ValueError(f"type_object must be one of {', '.join(TYPES)}, got {type_object!r}")
    if wanted == "module" and not isinstance(object, BaseOptim):
        raise TypeError(
            "type_object='module' only supports solvers of deepinv.optim built with unfold=True, "
            f"got a {type(object).__name__}; a network on tiles is type_object='denoiser'"
        )
    if wanted != "auto":
        _check_named(object, wanted)
        return wanted
    listed = isinstance(object, Sequence) and len(object) > 0
    if isinstance(object, Physics) or (listed and isinstance(object[0], Physics)):
        return "physics"
    if isinstance(object, DataFidelity) or (listed and isinstance(object[0], DataFidelity)):
        return "data_fidelity"
    if isinstance(object, nn.Parameter) or (listed and isinstance(object[0], nn.Parameter)):
        return "parameters"
    if isinstance(object, SOLVERS):
        return "module" if is_unrolled(object) else "solver"
    if isinstance(object, Loss):
        return "loss"
    if isinstance(object, Trainer):
        return "trainer"
    if isinstance(object, Prior):
        return "prior"
    if isinstance(object, Denoiser):
        return "denoiser"
    if isinstance(object, nn.Module):
        if any(name in options for name in _TILING):
            return "denoiser"
        raise ValueError(
            f"Cannot auto-detect generic torch.nn.Module ({type(object).__name__}): give tile "
            "options such as patch_size=, or type_object='denoiser', to run it on tiles"
        )
    if callable(object):
        raise ValueError(
            "what a factory makes cannot be told: give type_object='physics', 'data_fidelity' or "
            "'denoiser'"
        )
    raise ValueError(f"cannot distribute a {type(object).__name__}")


def _distribute_fidelity(
    source: Any, ctx: DistributedContext, given: Mapping[str, Any]
) -> DistributedDataFidelity:
    if isinstance(source, DistributedDataFidelity):
        return source
    whole = isinstance(source, DataFidelity) and not isinstance(source, StackedPhysicsDataFidelity)
    return DistributedDataFidelity(
        ctx,
        source,
        given["num_operators"] if not whole else None,
        factory_kwargs=given["factory_kwargs"],
        reduction=given["reduction"],
    )


def _tiling_options(given: Mapping[str, Any]) -> TilingOptions:
    if given["tiling_strategy"] is not None:
        raise NotImplementedError(
            "tiling_strategy must be None: tiles are cut by patch_size, overlap and tiling_dims"
        )
    if given["checkpoint_use_reentrant"]:
        raise ValueError(
            "checkpoint_use_reentrant must be False: re-entrant checkpointing loses gradients "
            "without saying so"
        )
    memory = parse_memory(given["memory"])
    return TilingOptions(**{**{name: given[name] for name in _TILING}, "memory": memory})


def _distribute_network(
    network: Any, ctx: DistributedContext, tiling: TilingOptions, given: Mapping[str, Any]
) -> DistributedProcessing:
    if isinstance(network, DistributedProcessing):
        return network
    if not callable(network):
        raise TypeError(f"the factory made a {type(network).__name__}, a network is needed")
    if given["dtype"] is not None and isinstance(network, nn.Module):
        network._apply(lambda t: t.to(given["dtype"]) if t.is_floating_point() else t)
    return DistributedProcessing(
        ctx,
        network,
        tiling,
        checkpoint_preserve_rng_state=given["checkpoint_preserve_rng_state"],
    )
