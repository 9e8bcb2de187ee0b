"""``shardinv study compare`` and ``schema``, as a user calls them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shardinv.cli.main import app
from shardinv.cli.study.schema import study_schema
from shardinv.io import write_json
from shardinv.study.plan.grids import Study
from shardinv.study.plan.point import Point
from tests.study.analysis.test_summary import measurement

runner = CliRunner()
CONFIGS = Path(__file__).parents[2] / "configs"
NOISY = [2.0, 2.2, 1.9, 2.1, 2.0, 1.8, 2.1, 2.0, 1.9, 2.2, 2.0, 2.1]


def study(folder: Path, factor: float, psnr: float = 30.0) -> str:
    for ranks in (1, 2):
        found = measurement([factor * second for second in NOISY], ranks=ranks)
        found = replace(found, psnr_db=[20.0, psnr])
        write_json(folder / "points" / f"{found.point.key}.json", found.record())
    return str(folder)


def test_compare(tmp_path: Path) -> None:
    a, b = study(tmp_path / "a", 1.0), study(tmp_path / "b", 1.3)
    told = runner.invoke(app, ["study", "compare", a, b])
    assert told.exit_code == 0, told.output
    assert "1.300" in told.output
    assert told.output.count("slower") == 2
    assert "worse: " in told.output
    failed = runner.invoke(app, ["study", "compare", a, b, "--fail"])
    assert failed.exit_code == 1
    assert "takes 1.30 times as long" in failed.output
    tolerated = runner.invoke(app, ["study", "compare", a, b, "--fail", "--slower", "50"])
    assert tolerated.exit_code == 0
    assert "nothing is worse" in tolerated.output
    assert runner.invoke(app, ["study", "compare", b, a, "--fail"]).exit_code == 0


def test_compare_what_is_not_there(tmp_path: Path) -> None:
    a = study(tmp_path / "a", 1.0)
    result = runner.invoke(app, ["study", "compare", a, str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "holds no measured points" in result.output


def test_shipped_schema_is_that_of_the_classes() -> None:
    """To refresh: shardinv study schema configs/study.schema.json."""
    shipped = json.loads((CONFIGS / "study.schema.json").read_text(encoding="utf-8"))
    assert shipped == study_schema()
    grid = shipped["properties"]["grids"]["items"]
    assert set(grid["properties"]) == set(Point.model_fields)
    assert grid["additionalProperties"] is False
    assert all(each["description"] for each in grid["properties"].values())


def _studies() -> list[Path]:
    return [
        path
        for path in sorted(CONFIGS.glob("*.yaml"))
        if "grids" in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("path", _studies(), ids=lambda path: path.stem)
def test_shipped_configurations(path: Path) -> None:
    """Each is one; the small ones suit a machine without a GPU, and every other has a small one."""
    given: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    points = Study(**given).points
    small = path.stem.endswith("_small")
    assert len(points) > 2
    assert all(point.device == ("cpu" if small else "gpu") for point in points)
    if small:
        assert all(point.ranks <= 4 and point.network in ("ffdnet", "drunet") for point in points)
        assert "minutes on two cores" in path.read_text(encoding="utf-8").replace("\n# ", " ")
    else:
        assert path.with_stem(f"{path.stem}_small").is_file()
