"""``shardinv check``: the point that is chosen, what is printed and written, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shardinv.cli.check.lines import console, show, show_summary
from shardinv.cli.main import app
from shardinv.study.checks.finding import Finding

runner = CliRunner()
COMMON = {"size": 32, "frames": 2, "tile": 16, "overlap": 8, "iterations": 2}


def _config(folder: Path, *grids: dict[str, Any]) -> list[str]:
    path = folder / "study.yaml"
    text = yaml.safe_dump({"name": "small", "common": COMMON, "grids": list(grids), "repeats": 2})
    path.write_text(text, encoding="utf-8")
    return ["check", str(path), "--output", str(folder / "out")]


@pytest.mark.slow
def test_check(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = _config(tmp_path, {"system": "deepinv"}, {"ranks": [1, 2]})
    report = tmp_path / "found.json"
    result = runner.invoke(app, [*words, "--iterations", "1", "--json", str(report)])
    found = json.loads(report.read_text(encoding="utf-8"))
    # A halo of 8 pixels is too small for FFDNet: a warning or a failure, by what it costs here.
    assert result.exit_code == (found["status"] == "failed"), result.output
    assert "2 ranks on the CPU" in result.output
    printed = capfd.readouterr().out
    names = [finding["name"] for finding in found["findings"]]
    for name in ("balance: network", "writing: one rank", "results: halo", "links: latency"):
        assert name in names
        assert name in printed
    halo = next(f for f in found["findings"] if f["name"] == "results: halo")
    assert halo["status"] != "ok"
    assert f"→ {halo['remedy'][:10]}" in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert found["point"]["ranks"] == 2
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_what_failed_is_told_by_the_exit_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = _config(tmp_path, {"photograph": str(tmp_path / "none.png")})
    result = runner.invoke(app, words)
    assert result.exit_code == 1, result.output
    printed = capfd.readouterr().out
    assert "failed   machine: files" in printed
    assert "none.png: No such file" in " ".join(printed.split())
    assert "1 failed" in printed


def test_list(tmp_path: Path) -> None:
    words = _config(tmp_path, {"ranks": [1, 2], "layout": ["replicated", "sharded"]})
    result = runner.invoke(app, [*words, "--list"])
    assert result.exit_code == 0
    assert result.output.split("\n")[:-1] == [
        "  1  1 rank, layout replicated",
        "  2  2 ranks, layout replicated",
        "  3  1 rank, layout sharded",
        "  4  2 ranks, layout sharded",
    ]


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({"rnks": 2}, [], "rnks: Extra inputs"),
        ({"system": "deepinv"}, [], "no point of the system shardinv"),
        ({"ranks": [1, 2]}, ["--ranks", "3"], "no point has 3 ranks; there are points with 1, 2"),
        ({"ranks": [1, 2]}, ["--point", "3"], "--point 3: there are 2 points"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, grid: dict[str, Any], options: list[str], message: str
) -> None:
    result = runner.invoke(app, [*_config(tmp_path, grid), *options])
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_as_many_processes_as_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    result = runner.invoke(app, [*_config(tmp_path, {"ranks": [1, 2]}), "--ranks", "2"])
    assert result.exit_code == 2
    assert "torchrun started 3 processes" in result.output


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    findings = [
        Finding("balance: network", "ok", {}, "even"),
        Finding("results: halo", "warning", {}, "word " * 40, "do this " * 20),
    ]
    for finding in findings:
        show(out, finding)
    show_summary(out, findings)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{'ok':9}{'balance: network':23}even"
    assert lines[-1] == "1 ok, 1 warning, 0 failed"
    assert any(line.startswith(" " * 32 + "→ do this") for line in lines)
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)
