"""``shardinv study report`` and what a run leaves for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardinv.cli.main import app
from shardinv.cli.study.record import record_run
from shardinv.study.plan.grids import Study
from tests.study.report import made_up

runner = CliRunner()


def test_report(tmp_path: Path) -> None:
    made_up.write(tmp_path, [made_up.measurement(system="deepinv")], {"name": "mine"})
    result = runner.invoke(app, ["study", "report", str(tmp_path), "--no-published"])
    assert result.exit_code == 0, result.output
    assert "wrote" in result.output
    assert "<h1>mine</h1>" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


def test_without_results(tmp_path: Path) -> None:
    result = runner.invoke(app, ["study", "report", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds no measured points" in result.output


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("shardinv.study.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)  # as if it were not installed
    result = runner.invoke(app, ["study", "report", str(tmp_path)])
    assert result.exit_code == 2
    assert "jinja2: pip install 'shardinv[study]'" in result.output


def test_runs_are_recorded(tmp_path: Path) -> None:
    plan = Study(name="mine", grids=[{"ranks": [1, 2]}], price=2.0)
    record_run(tmp_path, plan, measures=True)
    record_run(tmp_path, plan.model_copy(update={"price": 3.0}), measures=False)
    record_run(tmp_path, plan, measures=True)
    found = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    assert Study(**found["study"]) == plan
    assert len(found["runs"]) == 2
    assert found["runs"][0]["versions"]["shardinv"]
    assert set(found["runs"][0]) == {"time", "command", "checkout", "versions"}
