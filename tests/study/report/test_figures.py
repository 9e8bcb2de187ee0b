"""What the figures show, from measurements whose values can be worked out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardinv.study.collection import collect
from shardinv.study.report.charts import AnyChart, BarChart, LineChart, TimelineChart
from shardinv.study.report.palette import COLOURS, dark
from shardinv.study.report.sections import charts, sections
from shardinv.study.report.write import naming_of
from tests.study.report import made_up


def drawn(plan: dict[str, Any] | None = None, *, published: bool = False, **options: Any) -> Any:
    """Charts by key of the made-up study."""
    return charts_of(made_up.study(**options), plan, published=published)


def charts_of(
    measurements: list[Any], plan: dict[str, Any] | None = None, *, published: bool = False
) -> dict[str, AnyChart]:
    collection = collect(Path("study"), measurements, {"study": plan or {}})
    found = sections(collection, naming_of(collection), with_published=published)
    return {chart.key: chart for chart in charts(found)}


def line(chart: AnyChart, name: str) -> dict[float, float]:
    assert isinstance(chart, LineChart)
    (found,) = [each for each in chart.lines if each.name == name]
    return dict(zip(found.x, found.y, strict=True))


def test_stages_add_up_to_the_iteration() -> None:
    chart = drawn()["stages"]
    assert isinstance(chart, BarChart)
    assert [part.name for part in chart.parts] == [
        "physics", "denoiser", "rest", "waiting", "moving",
    ]  # fmt: skip
    lanes = [(lane.group, lane.label) for lane in chart.lanes]
    place = lanes.index(("shardinv sharded", "4 ranks"))
    total = sum(part.values[place] for part in chart.parts)
    # The median of two repetitions, one 1 % slower, is between them; an iteration is one of them.
    low, high = chart.whiskers[place]
    assert total == pytest.approx(low)
    assert (low, high) == pytest.approx((0.345, 1.01 * 0.345))
    assert chart.x.title.endswith("in s")


def test_speedup_and_efficiency() -> None:
    found = drawn()
    peer = line(found["speedup"], "deepinv.distributed")
    assert peer == pytest.approx({1: 1, 2: 2, 4: 4}, rel=0.01)
    ours = line(found["efficiency"], "shardinv replicated")
    assert ours[2] == pytest.approx(0.9 / 0.67 / 2, rel=0.01)
    equal = line(found["efficiency-equal-work"], "shardinv replicated")
    assert equal[2] == pytest.approx(1.5 * ours[2])
    assert line(found["speedup"], "ideal") == {1: 1, 4: 4}
    chart = found["efficiency"]
    assert isinstance(chart, LineChart)
    sharded = next(each for each in chart.lines if each.name == "shardinv sharded")
    assert sharded.low[0] < sharded.y[0] < sharded.high[0]


def test_losses_are_all_of_the_time() -> None:
    chart = drawn()["losses"]
    assert isinstance(chart, BarChart)
    shares = {part.name: part.values for part in chart.parts}
    for lane, _ in enumerate(chart.lanes):
        assert sum(values[lane] for values in shares.values()) == pytest.approx(1)
    lanes = [(lane.group, lane.label) for lane in chart.lanes]
    place = lanes.index(("shardinv sharded", "4 ranks"))
    assert shares["useful"][place] == pytest.approx(0.9 / 0.345 / 4, rel=0.01)
    assert shares["halo work"][place] == pytest.approx(0.1 / 0.345, rel=0.01)
    assert shares["communication"][place] == pytest.approx(0.02 / 0.345, rel=0.01)
    assert any(
        note.startswith("shardinv sharded, 4 ranks: halo work takes") for note in chart.notes
    )


def test_communication() -> None:
    found = drawn()
    share = line(found["communication-share"], "shardinv sharded")
    assert share == pytest.approx({1: 0, 2: 0.02 / 0.67, 4: 0.02 / 0.345})
    talk = line(found["communication"], "shardinv sharded: communication")
    assert set(talk) == {2, 4}  # one rank says nothing, and the axis is logarithmic
    assert line(found["bytes"], "shardinv sharded") == {1: 0, 2: 750, 4: 750}
    assert "50\xa0% of it is waiting" in found["communication-share"].says


def test_timeline() -> None:
    chart = drawn()["timeline-shardinv-sharded-4-ranks"]
    assert isinstance(chart, TimelineChart)
    assert [lane.label for lane in chart.lanes] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    own = {(s.colour, s.upper) for s in chart.stretches if s.lane == 3}
    assert own == {
        ("physics", True), ("denoiser", True), ("hidden", False), ("waiting", False),
        ("moving", False),
    }  # fmt: skip
    (waits,) = [s for s in chart.stretches if s.lane == 0 and s.colour == "waiting"]
    assert (waits.start, waits.end) == pytest.approx((25, 35))  # of an iteration of 345 ms
    assert "750 bytes sent" in waits.detail


def test_quality() -> None:
    found = drawn(quality=True)
    distance = line(found["distance-untiled"], "shardinv sharded, 2 ranks")
    assert distance == pytest.approx({k + 1: 1e-4 * 2**k for k in range(8)})
    notes = found["distance-untiled"].notes
    assert "shardinv sharded, 2 ranks: the difference grows, 2.00-fold an iteration" in notes[-2]
    assert "does not grow" in found["distance-tiled"].notes[-1]
    assert "in none" in found["distance-tiled"].says
    assert line(found["seams"], "shardinv sharded, 2 ranks")[1] == pytest.approx(2e-4)
    assert line(found["ssim"], "deepinv")[8] == pytest.approx(0.9)
    assert "distance-untiled" not in drawn()


def test_memory_and_cost() -> None:
    found = drawn({"price": 3600.0})
    assert line(found["memory"], "deepinv.distributed") == {1: 1, 2: 2, 4: 4}
    seconds = line(found["worker-seconds"], "deepinv.distributed")
    assert seconds == pytest.approx(dict.fromkeys((1, 2, 4), 7.236))
    assert line(found["price"], "deepinv.distributed") == pytest.approx(seconds)
    assert line(found["energy"], "deepinv.distributed") == pytest.approx({1: 80, 2: 160, 4: 320})
    assert "price" not in drawn()


def test_published_beside() -> None:
    found = drawn(published=True, quality=True)
    theirs = line(found["efficiency"], "published 4096², V100")
    assert theirs[2] == pytest.approx(0.62737729)
    assert line(found["communication-share"], "published 2D 4096×4096, V100")[64] == pytest.approx(
        0.50058168, rel=1e-6
    )
    assert line(found["psnr-difference"], "published 2048², 64 V100")[10] > 1e-3
    assert "published-stages" in found
    assert not any("published" in key for key in drawn())


@pytest.mark.parametrize(
    ("setting", "values"), [("overlap", [4, 8, 16]), ("tile", [16, 32]), ("size", [64, 128])]
)
def test_against_a_setting(setting: str, values: list[int]) -> None:
    grid = [{"ranks": 2, setting: value, "quality": True} for value in values]
    found = charts_of([made_up.measurement(**settings) for settings in grid])
    name = "shardinv replicated, 2 ranks"
    assert list(line(found[f"time-{setting}"], name)) == values
    assert list(line(found[f"distance-{setting}"], name)) == values
    assert "speedup" not in found  # ranks don't differ


def test_undistributed_has_no_tiles() -> None:
    """It is a horizontal line through a figure of tiles."""
    several = [made_up.measurement(ranks=2, tile=tile) for tile in (16, 32)]
    found = charts_of([made_up.measurement(system="deepinv"), *several])
    assert line(found["time-tile"], "deepinv") == pytest.approx({16: 900, 32: 900})


def test_weak_scaling() -> None:
    grid = [(1, 64), (4, 128)]
    measured = [made_up.measurement(ranks=ranks, size=size) for ranks, size in grid]
    found = charts_of(measured, {"scaling": "weak"})
    assert found["speedup"].title == "Scaled speedup"
    # Four times the pixels on four ranks in a fourth of the time.
    assert line(found["speedup"], "shardinv replicated")[4] == pytest.approx(4 * 1.3 / 0.345)
    assert "time-size" not in found


def test_training_steps_have_stages_of_their_own() -> None:
    from dataclasses import replace

    from shardinv.study.analysis.factors import Iteration

    step = Iteration({"forward": 1.0, "backward": 2.0, "update": 0.5}, 0.0, 0.0, 3.5)
    measured = [
        replace(
            made_up.measurement(ranks=ranks, task="train"),
            iterations=[[step] * ranks] * 8,
            work=None,
        )
        for ranks in (1, 2)
    ]
    found = charts_of(measured, published=True)
    chart = found["stages"]
    assert isinstance(chart, BarChart)
    assert [part.name for part in chart.parts][:3] == ["forward", "backward", "update"]
    assert "losses" not in found
    assert not any("published" in line.name for line in found["speedup"].lines)


def test_every_colour_has_a_dark_one() -> None:
    used = {part.colour for chart in drawn(quality=True, profile=True, published=True).values()
            for part in getattr(chart, "parts", getattr(chart, "lines", ()))}  # fmt: skip
    assert used <= set(COLOURS)
    assert set(dark()) >= {COLOURS[name][0] for name in used}


def test_a_setting_that_no_series_varies_has_no_section() -> None:
    """One point with another tile is no line to draw."""
    measured = [
        made_up.measurement(ranks=1, tile=16),
        *(made_up.measurement(ranks=ranks, layout="sharded") for ranks in (2, 4)),
    ]
    assert "time-tile" not in charts_of(measured)
