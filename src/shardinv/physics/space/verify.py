"""Comparing a local form with its operator when it is built, on a small image cut into boxes.

Every rank draws the same numbers, so every rank finds the same.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import torch
from deepinv.physics import Physics
from deepinv.physics.forward import ComposedPhysics

from shardinv.geometry import Box, Partition
from shardinv.physics.space.local import Chain, LocalOperator, spatial_index

_PROBES = 48


class LocalFormError(ValueError):
    """A local form does not compute what its operator does."""


def verify_local_form(
    operator: Physics,
    form: LocalOperator | Chain,
    make: Callable[[Any], LocalOperator | Chain],
    twin: Callable[[Any, tuple[int, ...]], Physics] | None = None,
) -> None:
    """Raise unless a local form is its operator, on a small image of random values.

    Three things are compared: the output put together from random boxes, of which each sees only
    its window, all else being NaN; the adjoint, by inner products; and, by a NaN in one pixel of
    the image, whether the operator spreads it no further than the form says. An operator that
    spreads it everywhere, as one by Fourier transforms does, passes the last.

    Parameters
    ----------
    operator
        The operator.
    form
        Its local form.
    make
        Makes the form of an operator.
    twin
        Makes an operator of the same sort for a small image ``(C, *spatial)``; its form is compared
        then. Without, the operator itself is tried, at its own size if it is tied to one.

    Raises
    ------
    LocalFormError
        If they differ; names the operator and what differs.
    """
    if isinstance(operator, ComposedPhysics):
        return  # each of its operators was verified by itself
    name = type(operator).__name__
    batch, channels = form.lead
    spatial = _trial_shape(form)
    size = getattr(operator, "img_size", None)
    try:
        if twin is not None:
            operator = twin(operator, (channels, *spatial))
            form = make(operator)
        elif size is not None:
            channels, *rest = size
            spatial = tuple(rest)
        _compare(name, operator, form, (batch, channels, *spatial))
    except LocalFormError:
        raise
    except Exception as error:
        raise LocalFormError(
            f"the local form of {name} could not be compared with the operator on a small image of "
            f"shape {(batch, channels, *spatial)}: {type(error).__name__}: {error}. For an "
            "operator tied to the size of its image register a twin (register_local_form(..., "
            "twin=...))"
        ) from error


def cut_window(x: torch.Tensor, window: Box) -> torch.Tensor:
    """The pixels of a window of a whole image, going around where it reaches past the border."""
    first = x.ndim - window.ndim
    for number, (a, b) in enumerate(zip(window.start, window.stop, strict=True)):
        n = x.shape[first + number]
        if a >= 0 and b <= n:
            x = x.narrow(first + number, a, b - a)
        else:
            x = x.index_select(first + number, torch.arange(a, b, device=x.device) % n)
    return x


def add_window(x: torch.Tensor, values: torch.Tensor, window: Box) -> torch.Tensor:
    """Add a window to a whole image, going around at the border: the adjoint of cutting it."""
    first = x.ndim - window.ndim
    for number, (a, b) in enumerate(zip(window.start, window.stop, strict=True)):
        shape = list(values.shape)
        shape[first + number] = n = x.shape[first + number]
        index = torch.arange(a, b, device=x.device) % n
        values = values.new_zeros(shape).index_add(first + number, index, values)
    return x + values


def _trial_shape(form: LocalOperator | Chain) -> tuple[int, ...]:
    return form.trial_shape if isinstance(form, LocalOperator) else form.stages[0].trial_shape


def _compare(name: str, operator: Any, form: LocalOperator | Chain, shape: tuple[int, ...]) -> None:
    stages = form.stages if isinstance(form, Chain) else (form,)
    like = next(
        (
            tensor
            for stage in stages
            for tensor in (*stage.parameters(), *stage.buffers())
            if tensor.is_floating_point() or tensor.is_complex()
        ),
        torch.zeros(()),
    )
    dtype = torch.float32 if any(getattr(s, "cast", False) for s in stages) else like.dtype
    draw = torch.Generator().manual_seed(20)
    x = torch.randn(shape, generator=draw, dtype=dtype).to(like.device)
    spatial = shape[2:]
    chance = random.Random(20)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = operator.A(x)
        partition = _ragged(spatial, chance)
        output, _ = _apply_in_boxes(stages, x, partition, chance)
        if tuple(output.shape) != tuple(wanted.shape):
            raise LocalFormError(
                f"the local form of {name} gives an output of shape {tuple(output.shape)} for an "
                f"image of shape {shape}, the operator {tuple(wanted.shape)}"
            )
        scale = wanted.abs().max().item() or 1.0
        precision = 50 * torch.finfo(dtype).eps * scale * max(1.0, _taps(stages) ** 0.5)
        # Written so that a NaN, which a box has read from outside its window, fails.
        error = (output - wanted).abs().max().item()
        if not error <= precision:
            raise LocalFormError(
                f"the local form of {name} is not the operator: on a random image of shape {shape} "
                f"in boxes the outputs differ by up to {error:.3g}, of {scale:.3g} (NaN: it reads "
                "outside its window)"
            )
        v = torch.randn(tuple(output.shape), generator=draw, dtype=output.dtype).to(x.device)
        back = _transpose_in_boxes(stages, v, partition, x)
        left, right = (
            torch.vdot(v.flatten(), output.flatten()),
            torch.vdot(back.flatten(), x.flatten()),
        )
        bound = (
            50 * torch.finfo(dtype).eps * float(v.norm() * output.norm() + x.norm() * back.norm())
        )
        if not abs(complex(left) - complex(right)) <= bound:
            raise LocalFormError(
                f"the transpose of {name}'s local form is not its adjoint: <v, A x> = "
                f"{complex(left):.6g}, <A^T v, x> = {complex(right):.6g}"
            )
        if len(stages) == 1:
            _probe_support(name, operator, stages[0], x)


def _taps(stages: Sequence[LocalOperator]) -> float:
    return float(sum(t.numel() for stage in stages for t in stage.kernels.values()))


def _ragged(spatial: Sequence[int], chance: random.Random) -> Partition:
    """A partition with boxes of unequal sizes, one pixel and none among them."""
    cuts = []
    for n in spatial:
        inner = sorted(chance.randrange(0, n + 1) for _ in range(2 if len(spatial) < 3 else 1))
        cuts.append([0, *inner, n])
    boxes = [
        Box(tuple(a for a, _ in cell), tuple(b for _, b in cell))
        for cell in product(*(list(pairwise(c)) for c in cuts))
    ]
    return Partition(tuple(spatial), tuple(boxes))


def _apply_in_boxes(
    stages: Sequence[LocalOperator], x: torch.Tensor, partition: Partition, chance: random.Random
) -> tuple[torch.Tensor, Partition]:
    for stage in stages:
        spatial = tuple(x.shape[2:])
        outputs = stage.output_partition(partition)
        pieces = []
        for box in outputs.boxes:
            needed = stage.window(box, spatial)
            window = needed
            values = cut_window(x, needed)
            if not needed.is_empty:
                # A larger window than is needed, as operators of one stack get it.
                window = needed.grow([chance.randrange(3) for _ in spatial])
                large = torch.full(
                    (*x.shape[:2], *window.shape), torch.nan, dtype=x.dtype, device=x.device
                )
                large[spatial_index(*needed.slices(window))] = values
                values = large
            pieces.append(stage.restrict(box, spatial).evaluate(values, window, box, spatial))
        result = pieces[0].new_zeros(*pieces[0].shape[:2], *outputs.shape)
        for box, piece in zip(outputs.boxes, pieces, strict=True):
            result[spatial_index(*box.slices())] = piece
        x, partition = result, outputs
    return x, partition


def _transpose_in_boxes(
    stages: Sequence[LocalOperator], v: torch.Tensor, partition: Partition, x: torch.Tensor
) -> torch.Tensor:
    partitions = [partition]
    for stage in stages:
        partitions.append(stage.output_partition(partitions[-1]))
    for stage, image, outputs in reversed(
        list(zip(stages, partitions[:-1], partitions[1:], strict=True))
    ):
        total: torch.Tensor | None = None
        for box in outputs.boxes:
            window = stage.window(box, image.shape)
            part = stage.restrict(box, image.shape).transpose(
                v[spatial_index(*box.slices())], box, window, image.shape
            )
            if total is None:
                total = part.new_zeros(*part.shape[:2], *image.shape)
            total = add_window(total, part, window)
        assert total is not None
        v = total
    return v


def _probe_support(name: str, operator: Any, form: LocalOperator, x: torch.Tensor) -> None:
    spatial = tuple(x.shape[2:])
    periodic = form.periodic(len(spatial))
    for pixel in (tuple(n // 2 for n in spatial), tuple(n - 1 for n in spatial)):
        probe = torch.zeros_like(x)
        index: tuple[Any, ...] = (Ellipsis, *pixel)
        probe[index] = torch.nan
        reached = torch.isnan(operator.A(probe)).flatten(0, 1).any(dim=0)
        if bool(reached.all()):
            continue
        # A NaN also goes through a weight of zero, on which nothing depends.
        probe[index] = 1.0
        response = operator.A(probe).abs().flatten(0, 1).amax(dim=0)
        reached &= response > torch.finfo(response.dtype).eps * response.max()
        for output in reached.nonzero().tolist()[:_PROBES]:
            window = form.window(Box(tuple(output), tuple(i + 1 for i in output)), spatial)
            inside = all(
                any(a <= p + k * n < b for k in ((-1, 0, 1) if wraps else (0,)))
                for p, a, b, n, wraps in zip(
                    pixel, window.start, window.stop, spatial, periodic, strict=True
                )
            )
            if not inside:
                raise LocalFormError(
                    f"the local form of {name} says that output {tuple(output)} draws on the "
                    f"pixels {window}, but the operator's depends on pixel {pixel}"
                )
