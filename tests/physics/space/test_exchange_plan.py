"""What an exchange sends, from the boxes alone: little, and less for larger images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from shardinv.geometry import Box, Partition
from shardinv.physics.space import Axis, LocalConvolution
from shardinv.physics.space.exchange_plan import HaloPlan
from shardinv.physics.space.padding import fold_window, pad_window
from tests.physics.space.operators import draw, kernel


def share(side: int, mesh: tuple[int, int]) -> float:
    """The largest part of the image that a rank sends for a stack of blurs, up to 25 px wide."""
    image = Partition.split((side, side), mesh)
    blurs = [
        LocalConvolution(kernel(1, 1, taps, taps), padding)
        for taps, padding in ((9, "reflect"), (25, "circular"), (17, "valid"))
    ]
    halo = HaloPlan.of(image, [(blur, blur.output_partition(image)) for blur in blurs])
    return max(halo.sent(rank) for rank in range(image.ranks)) / side**2


@pytest.mark.parametrize("mesh", [(2, 2), (4, 1)])
def test_halos_are_a_small_part_of_a_large_image(mesh: tuple[int, int]) -> None:
    small, large = share(2048, mesh), share(4096, mesh)
    assert large < 0.02
    assert large == pytest.approx(small / 2, rel=0.02)


def test_the_adjoint_sends_what_came_in() -> None:
    image = Partition.split((40, 30), (3, 2))
    blur = LocalConvolution(kernel(1, 1, 7, 4), "reflect")
    halo = HaloPlan.of(image, [(blur, blur.output_partition(image))])
    ranks = range(image.ranks)
    assert sum(halo.sent(r) for r in ranks) == sum(halo.sent(r, adjoint=True) for r in ranks)
    assert halo.width(image) == ((3, 3), (1, 2))


def test_what_every_rank_has_is_not_sent() -> None:
    image = Partition.split((40, 30), (3, 1))
    for decimation in (LocalConvolution(None, "constant", 3, ndim=2),):
        halo = HaloPlan.of(image, [(decimation, decimation.output_partition(image))])
        assert halo.plan is None
        assert halo.windows == image.boxes
    along = LocalConvolution(kernel(1, 1, 1, 9), "replicate")
    assert HaloPlan.of(image, [(along, along.output_partition(image))]).plan is None


@given(
    taps=st.integers(1, 6),
    centre=st.integers(0, 5),
    stride=st.integers(1, 4),
    pixels=st.integers(7, 12),
    padding=st.sampled_from(["valid", "reflect", "replicate", "constant", "symmetric"]),
    data=st.data(),
)
def test_windows_are_padded_as_by_torch(
    taps: int, centre: int, stride: int, pixels: int, padding: str, data: st.DataObject
) -> None:
    """The pixels of a box's window are those of the whole image padded, and folding transposes."""
    centre = min(centre, taps - 1)
    axis = Axis(taps, centre, stride, padding)  # type: ignore[arg-type]
    x = draw(1, 1, pixels)
    before, after = (0, 0) if padding == "valid" else (axis.before, axis.centre)
    if padding == "symmetric":
        parts = [x[..., :before].flip(-1), x, x[..., pixels - after :].flip(-1)]
        whole = torch.cat(parts, dim=-1)
    else:
        whole = F.pad(x, (before, after), mode="constant" if padding == "valid" else padding)
    outputs = axis.outputs(pixels)
    assert outputs == (whole.shape[-1] - taps) // stride + 1
    start = data.draw(st.integers(0, outputs - 1))
    stop = data.draw(st.integers(start + 1, outputs))
    sources = [axis.sources(start, stop, pixels)]
    low, high = sources[0].span
    low, high = data.draw(st.integers(0, low)), data.draw(st.integers(high, pixels))
    window = Box((low,), (high,))
    padded = pad_window(x[..., low:high], window, sources)
    assert torch.equal(padded, whole[..., start * stride : (stop - 1) * stride + taps])
    v = draw(*padded.shape, seed=2)
    folded = fold_window(v.clone(), window, sources)
    assert float((folded * x[..., low:high]).sum()) == pytest.approx(float((v * padded).sum()))
