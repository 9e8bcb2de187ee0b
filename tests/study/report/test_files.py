"""The files beside the page: data, traces, figures; and where numbers come from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from shardinv.study.analysis.timeline import Span
from shardinv.study.collection import NoResults, collect, read_collection
from shardinv.study.report.charts import Axis, BarChart, Lane, Line, LineChart, Part
from shardinv.study.report.export import save_data
from shardinv.study.report.interactive import plotly
from shardinv.study.report.provenance import hash_of_results, provenance
from shardinv.study.report.static import save_chart
from shardinv.study.report.trace import trace
from tests.study.report import made_up


def test_data_is_read_back(tmp_path: Path) -> None:
    rows = collect(tmp_path, made_up.study(quality=True, profile=True)).rows
    files = {file.name for file in save_data(rows, tmp_path)}
    assert files == {
        f"{name}.{suffix}"
        for name in (
            "points", "iterations", "costs", "quality", "memory", "kernels", "timeline",
        )
        for suffix in ("parquet", "csv")
    }  # fmt: skip
    for name in ("points", "iterations", "quality"):
        table = pyarrow.parquet.read_table(tmp_path / f"{name}.parquet")
        again = pyarrow.csv.read_csv(tmp_path / f"{name}.csv")
        assert again.column_names == table.column_names
        assert again.num_rows == table.num_rows
    seconds = pyarrow.parquet.read_table(tmp_path / "iterations.parquet").to_pylist()
    key = rows[-1].point.key
    own = [
        e for e in seconds if (e["key"], e["repeat"], e["iteration"], e["rank"]) == (key, 0, 7, 3)
    ]
    values = {entry["stage"]: entry["seconds"] for entry in own}
    assert values.pop("total") == pytest.approx(sum(values.values()))
    assert values["waiting"] == 0.01
    points = pyarrow.parquet.read_table(tmp_path / "points.parquet").to_pylist()
    assert points[-1]["factor_halo_work"] == pytest.approx(rows[-1].factors[0].value)
    assert points[0]["factor_halo_work"] is None
    assert points[-1]["repeats"] == 2


def test_trace() -> None:
    spans = [
        Span("physics", "stage", 0.0, 2.0),
        Span("physics halo", "hidden", 0.0, 1.0, 8),
        Span("physics halo", "hidden", 0.5, 1.5, 8),
        Span("physics halo", "waiting", 1.5, 1.75, 8),
    ]
    found = json.loads(json.dumps(trace([spans, spans], "two ranks")))
    events = found["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    whole = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in whole} == {0, 1}
    (physics,) = [e for e in whole if e["cat"] == "stage" and e["pid"] == 1]
    assert (physics["ts"], physics["dur"]) == (0.0, 2e6)
    # Events of a thread lie in each other or apart: two that overlap in part are on two threads.
    threads = {(e["pid"], e["tid"]) for e in whole}
    assert threads == {(rank, thread) for rank in (0, 1) for thread in (0, 1, 2, 3)}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == set(named)
    assert named[0, 3] == "behind computation 2"


def test_static_figures(tmp_path: Path) -> None:
    from PIL import Image

    chart = BarChart(
        "bars", "Bars", "", Axis("s"), Axis(""), (Lane("1 rank", "a"), Lane("2 ranks", "a")),
        (Part("won", (-0.1, 0.0), "rest", hatched=True), Part("physics", (1.0, 0.5), "physics")),
        ((0.9, 1.1), (0.4, 0.6)),
    )  # fmt: skip
    png, svg = save_chart(chart, tmp_path)
    with Image.open(png) as picture:
        assert picture.size[0] > 800
    text = svg.read_text(encoding="utf-8")
    for word in ("Bars", "1 rank", "2 ranks", "physics", "won"):
        assert word in text
    again, _ = save_chart(chart, tmp_path / "again")
    assert again.read_bytes() == png.read_bytes()


def test_plotly_accepts_every_chart() -> None:
    import plotly.graph_objects as go

    from tests.study.report.test_figures import drawn

    for chart in drawn(quality=True, profile=True, published=True).values():
        found = plotly(chart)
        figure = go.Figure(found["data"], found["layout"])  # refuses properties that aren't there
        assert len(figure.data) > 0
        json.dumps(found, allow_nan=False)


def test_logarithmic_limits_are_powers() -> None:
    axis = Axis("s", "log", ((1.0, "1"),), (0.1, 100.0))
    chart = LineChart("l", "L", "", axis, axis, (Line("a", (1.0,), (2.0,), "deepinv"),))
    assert plotly(chart)["layout"]["xaxis"]["range"] == [-1.0, 2.0]


def test_provenance(tmp_path: Path) -> None:
    plan = {"name": "made up", "price": None, "grids": [{"ranks": [1, 2]}]}
    folder = made_up.write(tmp_path, made_up.study(), plan)
    found = provenance(read_collection(folder), "2026-01-02 03:04")
    facts = dict(found.facts)
    assert "shardinv study run made_up.yaml" in facts["Run 1"]
    assert "commit 0123456789ab" in facts["Run 1"]
    assert facts["Measured"].startswith("10 points in 20 runs")
    digest = hashlib.sha256()
    for file in sorted((folder / "points").glob("*.json")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    assert facts["SHA-256 of the results"] == digest.hexdigest() == hash_of_results(folder)
    assert "made up" in found.configuration
    assert "price" not in found.configuration
    machines, versions = found.tables
    assert machines.rows[0][0] == 20
    assert ("torch", "2.9.0") in versions.rows


def test_without_results(tmp_path: Path) -> None:
    with pytest.raises(NoResults, match="holds no measured points"):
        read_collection(tmp_path)
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "old.json").write_text('{"point": {}}', encoding="utf-8")
    with pytest.raises(NoResults, match=r"old\.json is not what this version of shardinv writes"):
        read_collection(tmp_path)
