"""The registry of local forms: what it takes, what it refuses, how wrong forms are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinv.physics import Blur, BlurFFT, Inpainting, LinearPhysics, Tomography

from shardinv.geometry import Box
from shardinv.physics.space import (
    LocalConvolution,
    LocalFormError,
    LocalMultiplication,
    NotLocalError,
    local_form,
    make_local_form,
    register_local_form,
)
from shardinv.physics.space import registry as registry_module
from tests.physics.space.operators import SPATIAL, kernel, quiet


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry_module, "_registered", dict(registry_module._registered))


class Gradient(LinearPhysics):
    """Differences of neighbouring columns, going around."""

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.roll(x, -1, -1) - x

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.roll(y, 1, -1) - y


def difference(*values: float) -> torch.Tensor:
    return torch.tensor(values)[None, None, None]


def test_users_register_their_own() -> None:
    assert local_form(Gradient()) is None
    register_local_form(Gradient)(
        lambda operator: LocalConvolution(difference(1.0, -1.0, 0.0), "circular")
    )
    assert isinstance(make_local_form(Gradient()), LocalConvolution)


@pytest.mark.parametrize(
    "form",
    [
        lambda: LocalConvolution(difference(1.0, -1.0, 0.0), "reflect"),
        lambda: LocalConvolution(difference(0.0, -1.0, 1.0), "circular"),
        lambda: LocalMultiplication(torch.tensor(-1.0)),
        lambda: LocalConvolution(difference(1.0, -1.0, 0.0), "valid"),
    ],
    ids=["border", "direction", "support", "shape"],
)
def test_a_wrong_form_is_refused_by_name(form: Any) -> None:
    register_local_form(Gradient)(lambda operator: form())
    with pytest.raises(LocalFormError, match="Gradient"):
        make_local_form(Gradient())


def test_a_wrong_adjoint_is_refused() -> None:
    class Lopsided(LocalConvolution):
        def transpose(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 2 * super().transpose(*args, **kwargs)

    register_local_form(Gradient)(lambda operator: Lopsided(difference(1.0, -1.0, 0.0), "circular"))
    with pytest.raises(LocalFormError, match="adjoint"):
        make_local_form(Gradient())


def test_a_window_that_is_too_small_is_refused() -> None:
    class Shortsighted(LocalConvolution):
        def window(self, out_box: Box, spatial: Any) -> Box:
            window = super().window(out_box, spatial)
            if window.is_empty:
                return window
            return Box(window.start, (*window.stop[:-1], window.stop[-1] - 1))

    register_local_form(Gradient)(
        lambda operator: Shortsighted(difference(1.0, -1.0, 0.0), "circular")
    )
    with pytest.raises(LocalFormError, match="Gradient"):
        make_local_form(Gradient())


def test_a_subclass_with_another_operator_is_not_its_parent() -> None:
    class Doubled(Blur):
        def A(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            return 2 * super().A(x, **kwargs)

    class Renamed(Blur):
        pass

    filt = kernel(1, 1, 3, 3)
    with pytest.raises(NotLocalError, match="A of its own"):
        make_local_form(Doubled(filter=filt))
    assert isinstance(make_local_form(Renamed(filter=filt)), LocalConvolution)


def test_what_is_not_local_says_why() -> None:
    with quiet():
        tomography = Tomography(4, 16)
    with pytest.raises(NotLocalError, match="Tomography"):
        make_local_form(tomography)
    with pytest.raises(NotLocalError, match="not compact"):
        make_local_form(BlurFFT((1, *SPATIAL), filter=kernel(1, 1, *SPATIAL)))
    with pytest.raises(NotLocalError, match="no filter yet"):
        make_local_form(Blur(filter=None))
    with pytest.raises(NotLocalError, match="Tomography"), quiet():
        make_local_form(Blur(filter=kernel(1, 1, 3, 3)) * tomography)


def test_verifying_draws_no_random_number_of_the_user() -> None:
    before = torch.get_rng_state()
    make_local_form(Blur(filter=kernel(1, 1, 3, 3)))
    assert torch.equal(before, torch.get_rng_state())


def test_a_mask_is_held_on_its_box_alone() -> None:
    form = make_local_form(Inpainting((3, *SPATIAL), mask=kernel(3, *SPATIAL)))
    local = form.restrict(Box((3, 4), (8, 9)), SPATIAL)
    assert tuple(local.mask.shape) == (1, 3, 5, 5)
    assert local.mask.untyped_storage().nbytes() == 3 * 25 * 8


def test_other_kernels_and_masks() -> None:
    form = make_local_form(Blur(filter=kernel(1, 1, 3, 3)))
    changed = form.update(filter=kernel(1, 1, 6, 5), unknown=3)
    assert changed.window(Box((9, 9), (10, 10)), SPATIAL).shape == (6, 5)
    assert form.update(unknown=3) is form


@pytest.mark.parametrize(
    ("spatial", "padding", "message"),
    [
        ((2, 9), "valid", "too short"),
        ((2, 9), "reflect", "too short"),
        ((9,), "reflect", "2 spatial axes"),
    ],
)
def test_images_that_do_not_fit(spatial: tuple[int, ...], padding: Any, message: str) -> None:
    form = LocalConvolution(kernel(1, 1, 5, 5), padding)
    with pytest.raises(ValueError, match=message):
        form.output_shape(spatial)


def test_kernels_that_do_not_fit() -> None:
    whole = Box.whole((9, 9))
    for shape, dtype, message in (
        ((2, 3, 3, 3), torch.float64, "2 batch"),
        ((1, 2, 3, 3), torch.float64, "2 channels"),
        ((1, 1, 3, 3), torch.float32, "float32"),
    ):
        form = LocalConvolution(kernel(*shape, dtype=dtype), "reflect")
        x = torch.zeros(1, 3, 9, 9, dtype=torch.float64)
        with pytest.raises(ValueError, match=message):
            form.evaluate(x, whole, whole, (9, 9))
        # A box without a pixel raises too, or its rank would go on alone.
        empty = Box((0, 0), (0, 0))
        with pytest.raises(ValueError, match=message):
            form.evaluate(x[..., :0, :0], empty, empty, (9, 9))
