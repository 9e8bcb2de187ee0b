"""The local forms of DeepInverse's operators: put together from boxes they are the operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import pytest
import torch
from deepinv.physics import Blur, Physics
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import Box, Partition
from shardinv.physics.space import Chain, LocalForm, LocalOperator, make_local_form
from shardinv.physics.space.verify import add_window, cut_window
from tests.harness import assert_close
from tests.physics.space.operators import (
    SPATIAL,
    D,
    cases,
    composed,
    draw,
    kernel,
    quiet,
    transpose_of,
)

EXACT = 1e-12
_CASES = {**cases(), **composed()}
_built: dict[str, tuple[Physics, LocalForm]] = {}


def built(name: str) -> tuple[Physics, LocalForm]:
    if name not in _built:
        with quiet():
            operator = _CASES[name][0]()
            _built[name] = operator, make_local_form(operator)
    return _built[name]


@st.composite
def partitions(draw: st.DrawFn, spatial: Sequence[int]) -> Partition:
    """Boxes between cuts anywhere: some of no pixel, some of one, in any order."""
    cuts = []
    for n in spatial:
        inner = draw(st.lists(st.integers(0, n), max_size=3 if len(spatial) < 3 else 1))
        cuts.append([0, *sorted(inner), n])
    boxes = [
        Box(tuple(a for a, _ in cell), tuple(b for _, b in cell))
        for cell in product(*(list(pairwise(c)) for c in cuts))
    ]
    return Partition(tuple(spatial), tuple(draw(st.permutations(boxes))))


def widened(stage: LocalOperator, box: Box, spatial: tuple[int, ...], margin: Sequence[int]) -> Box:
    """A window that is larger than needed, as operators of one stack get it."""
    window = stage.window(box, spatial)
    if window.is_empty:
        return window
    limits = Box(
        tuple(-m if p else 0 for m, p in zip(margin, stage.periodic(len(spatial)))),
        tuple(n + m if p else n for n, m, p in zip(spatial, margin, stage.periodic(len(spatial)))),
    )
    if any(stage.periodic(len(spatial))):
        return window.grow(margin)
    return window.grow(margin) & limits


def forward(
    form: LocalForm, x: torch.Tensor, image: Partition, margin: Sequence[int]
) -> torch.Tensor:
    """Every box of the output by itself, then put together."""
    for stage in form.stages if isinstance(form, Chain) else (form,):
        outputs = stage.output_partition(image)
        spatial = image.shape
        pieces = []
        for box in outputs.boxes:
            window = widened(stage, box, spatial, margin)
            local = stage.restrict(box, spatial)
            pieces.append(local.evaluate(cut_window(x, window), window, box, spatial))
            assert tuple(pieces[-1].shape[2:]) == box.shape
        whole = pieces[0].new_zeros(*pieces[0].shape[:2], *outputs.shape)
        for box, piece in zip(outputs.boxes, pieces):
            whole[(..., *box.slices())] = piece
        x, image = whole, outputs
    return x


def backward(
    form: LocalForm, v: torch.Tensor, image: Partition, margin: Sequence[int]
) -> torch.Tensor:
    """What every box gives to its window, added up."""
    stages = form.stages if isinstance(form, Chain) else (form,)
    images = [image]
    for stage in stages:
        images.append(stage.output_partition(images[-1]))
    for stage, before, after in reversed(list(zip(stages, images[:-1], images[1:]))):
        total: torch.Tensor | None = None
        for box in after.boxes:
            window = widened(stage, box, before.shape, margin)
            part = stage.restrict(box, before.shape).transpose(
                v[(..., *box.slices())], box, window, before.shape
            )
            assert tuple(part.shape[2:]) == window.shape
            if total is None:
                total = part.new_zeros(*part.shape[:2], *before.shape)
            total = add_window(total, part, window)
        assert total is not None
        v = total
    return v


@pytest.mark.parametrize("name", _CASES)
@given(data=st.data())
def test_boxes_make_the_operator_and_its_adjoint(name: str, data: st.DataObject) -> None:
    operator, form = built(name)
    shape = _CASES[name][1]
    image = data.draw(partitions(shape[2:]))
    margin = data.draw(st.tuples(*[st.integers(0, 3)] * (len(shape) - 2)))
    x = draw(*shape)
    with quiet():
        y = operator.A(x)
        v = draw(*y.shape, seed=3)
        wanted = transpose_of(operator, x, v)
    assert_close(forward(form, x, image, margin), y, EXACT, f"{name}: A")
    back = backward(form, v, image, margin)
    assert_close(back, wanted, EXACT, f"{name}: adjoint")
    left, right = (v * y).sum(), (back * x).sum()
    assert abs(left - right) <= EXACT * (v.norm() * y.norm()), f"{name}: inner products"


@pytest.mark.parametrize("name", _CASES)
def test_the_boxes_of_the_output_follow_and_come_back(name: str) -> None:
    _, form = built(name)
    spatial = _CASES[name][1][2:]
    for mesh in product((1, 2, 3), repeat=len(spatial)):
        image = Partition.split(spatial, mesh)
        outputs = (
            form.partitions(image)[-1] if isinstance(form, Chain) else form.output_partition(image)
        )
        assert outputs.ranks == image.ranks
        assert outputs.shape == form.output_shape(spatial)
        found = form.input_partition(outputs, spatial)
        again = (
            form.partitions(found)[-1] if isinstance(form, Chain) else form.output_partition(found)
        )
        assert again == outputs, f"{name} on {mesh}"


@pytest.mark.parametrize(
    "name",
    [
        "Blur reflect (4, 3)",
        "Blur circular for each batch and channel",
        "Blur valid fft",
        "SpaceVaryingBlur replicate True",
        "Downsampling circular 2",
        "Upsampling reflect",
        "Unmixing",
    ],
)
def test_gradients_of_kernels_and_second_order(name: str) -> None:
    """Also in boxes without a pixel, whose graph must be the others'."""
    _, form = built(name)
    assert isinstance(form, LocalOperator)
    shape = _CASES[name][1]
    spatial = shape[2:]
    outputs = form.output_partition(Partition.split(spatial, (3, 2)))
    boxes = [*outputs.boxes[:2], Box((1,) * len(spatial), (1,) * len(spatial))]
    x = draw(*shape).requires_grad_()
    for box in boxes:
        window = form.window(box, spatial)
        leaves = {n: t.detach().clone().requires_grad_() for n, t in form.kernels.items()}
        for direction in ("apply", "transpose"):
            if direction == "apply":
                values = cut_window(x, window)
                result = form.evaluate(values, window, box, spatial, leaves)
            else:
                probe = form.evaluate(cut_window(x, window), window, box, spatial)
                values = torch.ones_like(probe).requires_grad_()
                result = form.transpose(values, box, window, spatial, leaves)
            # Linear in values and kernels: the mixed second derivative is the whole of it.
            inputs = (values if direction == "transpose" else x, *leaves.values())
            first = torch.autograd.grad((result**2).sum(), inputs, create_graph=True)
            second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
            assert all(torch.isfinite(g).all() for g in (*first, *second))
            if box.is_empty:
                assert not any(g.abs().max() for g in (*first, *second) if g.numel())
    box = boxes[0]
    window = form.window(box, spatial)
    small = cut_window(draw(1, *shape[1:]) if form.lead[0] == 1 else draw(*shape), window)
    leaves = tuple(t.detach().clone().requires_grad_() for t in form.kernels.values())
    names = list(form.kernels)

    def evaluate(values: torch.Tensor, *kernels: torch.Tensor) -> torch.Tensor:
        y = form.evaluate(values, window, box, spatial, dict(zip(names, kernels)))
        return (y**2).mean()[None]

    torch.autograd.gradcheck(evaluate, (small.requires_grad_(), *leaves), fast_mode=True)
    torch.autograd.gradgradcheck(evaluate, (small.requires_grad_(), *leaves), fast_mode=True)


@pytest.mark.parametrize("padding", ["valid", "circular", "reflect", "constant"])
@pytest.mark.parametrize("fourier", [False, True])
def test_complex_images_and_kernels(padding: str, fourier: bool) -> None:
    z = torch.complex128
    operator = Blur(filter=kernel(1, 1, 4, 3, dtype=D) + 1j * kernel(1, 1, 4, 3, seed=2))
    operator.padding = padding
    form = make_local_form(operator)
    form.fourier = fourier
    x = draw(1, 2, *SPATIAL, dtype=z)
    image = Partition.split(SPATIAL, (2, 2))
    y = operator.A(x)
    v = draw(*y.shape, seed=3, dtype=z)
    assert_close(forward(form, x, image, (1, 1)), y, EXACT, "A")
    back = backward(form, v, image, (1, 1))
    assert_close(back, transpose_of(operator, x, v), EXACT, "adjoint")
    assert abs(torch.vdot(v.flatten(), y.flatten()) - torch.vdot(back.flatten(), x.flatten())) < (
        EXACT * v.norm() * y.norm()
    )


def test_single_precision() -> None:
    operator = Blur(filter=kernel(1, 1, 5, 4, dtype=torch.float32), padding="reflect")
    form = make_local_form(operator)
    x = draw(1, 1, *SPATIAL, dtype=torch.float32)
    got = forward(form, x, Partition.split(SPATIAL, (3, 2)), (0, 0))
    assert_close(got, operator.A(x), 1e-6, "A")
