"""``shardinv study``: points in processes of their own, one that fails, going on, the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shardinv.cli.main import app
from shardinv.study.plan.grids import Study
from shardinv.study.plan.point import Point

runner = CliRunner()
COMMON = {"size": 32, "frames": 2, "tile": 16, "overlap": 8, "iterations": 2}


def _config(folder: Path, *grids: dict[str, Any]) -> list[str]:
    path = folder / "study.yaml"
    text = yaml.safe_dump({"name": "small", "common": COMMON, "grids": list(grids)})
    path.write_text(text, encoding="utf-8")
    return [str(path), "--output", str(folder / "out")]


@pytest.mark.slow
def test_run(tmp_path: Path) -> None:
    words = _config(tmp_path, {"system": "deepinv"}, {"ranks": 2})
    first = runner.invoke(app, ["study", "run", *words])
    assert first.exit_code == 0, first.output
    assert "2 points, 0 measured already" in first.output
    assert "shardinv replicated 32² on 2" in first.output
    for column in ("small", "s/iteration", "efficiency", "16/8"):
        assert column in first.output
    files = sorted((tmp_path / "out" / "points").iterdir())
    assert [file.suffix for file in files] == [".json", ".json"]
    dates = [file.stat().st_mtime_ns for file in files]

    words = _config(
        tmp_path, {"system": "deepinv"}, {"ranks": 2}, {"photograph": str(tmp_path / "none.png")}
    )
    second = runner.invoke(app, ["study", "run", *words])
    assert second.exit_code == 1
    assert "3 points, 2 measured already" in second.output
    assert "1 of 3 points failed" in second.output
    (error,) = (tmp_path / "out" / "points").glob("*.error.txt")
    assert "none.png" in error.read_text(encoding="utf-8")
    assert [file.stat().st_mtime_ns for file in files] == dates

    shown = runner.invoke(app, ["study", "show", *words])
    assert shown.exit_code == 0
    assert "shardinv" in shown.output


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    result = runner.invoke(app, ["study", "run", *_config(tmp_path, {"rnks": 2})])
    assert result.exit_code == 2
    assert "grid 1: rnks: Extra inputs" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_help_has_every_key() -> None:
    text = runner.invoke(app, ["study", "run", "--help"]).output
    for name, field in {**Study.model_fields, **Point.model_fields}.items():
        words = " ".join(text.split())
        assert f"{name}: {field.description}" in words
    assert "iterations: How many; of training, how many steps. [10]" in " ".join(text.split())
