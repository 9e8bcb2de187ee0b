"""``shardinv train``: its file, what it leaves, resuming, the same weights however it is shared."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

from shardinv import DistributedContext
from shardinv.cli.errors import UsageError
from shardinv.cli.main import app
from shardinv.cli.train.model import make_solver
from shardinv.cli.train.run import run_train
from shardinv.cli.train.settings import TrainSettings
from tests.harness.launch import launch_script
from tests.harness.pool import WorkerPool

runner = CliRunner()
FILES = {"weights.pt", "learning_curve.png", "validation.png", "result.json"}
SMALL: dict[str, Any] = {
    "problem": {"frames": 3},
    "model": {"iterations": 2, "depth": 3, "width": 6},
    "data": {"side": 32, "samples": 5, "validation_samples": 2},
    "optimizer": {"epochs": 3, "batch": 2, "clip": 1.0},
    "layout": {"tile": 16, "overlap": 4, "device": "cpu"},
}


def _config(**sections: dict[str, Any]) -> dict[str, Any]:
    return {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in SMALL | sections}


def _file(folder: Path, **sections: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(_config(**sections)), encoding="utf-8")
    return path


def _result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "weights.pt")
    return found


# -- the file ------------------------------------------------------------------------------------


def test_example_is_the_defaults() -> None:
    printed = runner.invoke(app, ["train", "--example"])
    assert printed.exit_code == 0
    assert TrainSettings(**yaml.safe_load(printed.output)) == TrainSettings()


def test_shipped_configuration_is_valid() -> None:
    path = Path(__file__).parents[2] / "configs" / "train_unrolled.yaml"
    TrainSettings(**yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {depht: 3}", "there is no model.depht"),
        ("optimizer: {epochs: 0}", "optimizer.epochs must be greater than or equal to 1, got 0"),
        ("data: {side: 33}", "data.side 33 must be a multiple of 4: twice the factor"),
        ("data: {training: [none.jpg]}", "there is no file none.jpg"),
        ("data: {side: 4000}", "data.side 4000: stream has"),
        ("memory: {budget: lots}", "memory.budget: "),
        ("layout: {tile: 8, overlap: 9}", "layout.overlap 9 is wider than layout.tile 8"),
        ("model: [", "is no YAML"),
        ("3", "must have sections such as model and data"),
    ],
)
def test_mistakes_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    result = runner.invoke(app, ["train", str(path), "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.startswith("Error: ")
    assert len(result.output.strip().splitlines()) == 1


def test_no_file() -> None:
    for words, message in ((["none.yaml"], "can't be read"), ([], "--example prints one")):
        result = runner.invoke(app, ["train", *words])
        assert result.exit_code == 2
        assert message in result.output


# -- what a run leaves ---------------------------------------------------------------------------


def _train(
    ctx: DistributedContext, folder: str, config: dict[str, Any], before: int | None = None
) -> str:
    """A run on this rank, broken off before an epoch; what it prints."""
    from shardinv.cli.train.run import _Training

    settings = TrainSettings(**config, output=Path(folder))
    epoch = _Training._epoch

    def stop(self: Any, number: int) -> float:
        if number == before:
            raise KeyboardInterrupt
        return epoch(self, number)

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(_Training, "_epoch", stop)
        with contextlib.suppress(KeyboardInterrupt):
            run_train(settings)
    return printed.getvalue()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and output of a run on one rank, through the command."""
    folder = tmp_path_factory.mktemp("alone")
    result = runner.invoke(
        app, ["train", str(_file(folder)), "--processes", "1", "--output", str(folder / "out")]
    )
    assert result.exit_code == 0, result.output
    return folder / "out", result.output


def test_writes_everything(alone: tuple[Path, str]) -> None:
    folder, printed = alone
    assert {file.name for file in folder.iterdir()} == FILES
    history = _result(folder)["history"]
    assert [len(history[name]) for name in ("loss", "psnr_db", "seconds")] == [3, 3, 3]
    assert history["psnr_db"][-1] > history["start_db"] + 0.5  # it learns
    assert history["loss"][-1] < history["loss"][0]
    assert f"{history['psnr_db'][-1]:.2f} dB after 3 epochs" in printed
    for epoch in (1, 2, 3):
        assert f"epoch {epoch}/3" in printed
    for name in ("learning_curve.png", "validation.png"):
        with Image.open(folder / name) as figure:
            assert min(figure.size) > 300


def test_weights_load_into_the_undistributed_solver(alone: tuple[Path, str]) -> None:
    solver = make_solver(TrainSettings(**_config()))
    start = {name: value.clone() for name, value in solver.state_dict().items()}
    solver.load_state_dict(_weights(alone[0]))
    assert all(
        not torch.equal(value, start[name])
        for name, value in solver.state_dict().items()
        if name.endswith("weight") or "stepsize" in name
    )


@pytest.mark.parametrize(("world_size", "kind"), [(2, "sharded"), (3, "replicated")])
def test_ranks_train_the_same_model(
    pool: WorkerPool, world_size: int, kind: str, alone: tuple[Path, str], tmp_path: Path
) -> None:
    config = _config(layout={"kind": kind})
    pool.run(_train, str(tmp_path), config, world_size=world_size)
    assert {file.name for file in tmp_path.iterdir()} == FILES
    mine, wanted = _result(tmp_path), _result(alone[0])
    assert mine["ranks"] == world_size
    for name in ("loss", "psnr_db"):
        assert mine["history"][name] == pytest.approx(wanted["history"][name], rel=1e-4)
    expected = _weights(alone[0])
    for name, value in _weights(tmp_path).items():
        assert torch.allclose(value, expected[name], atol=2e-4), name


def test_resumed_with_other_ranks(
    pool: WorkerPool, alone: tuple[Path, str], tmp_path: Path
) -> None:
    folder, config = str(tmp_path), _config()
    pool.run(_train, folder, config, 2, world_size=2)
    assert {file.name for file in tmp_path.iterdir()} == {"checkpoints"}
    config["layout"]["kind"] = "sharded"
    other = {**config, "model": {**config["model"], "depth": 4}, "resume": True}
    with pytest.raises(UsageError, match="is of a run with another model"):
        _train_alone(folder, other)
    printed = pool.run(_train, folder, {**config, "resume": True}, world_size=3)
    assert "resumed after epoch 2" in printed[0]
    assert "epoch 3/3" in printed[0]
    assert "epoch 2/3" not in printed[0]
    assert not printed[1]
    mine, wanted = _result(tmp_path)["history"], _result(alone[0])["history"]
    assert mine["psnr_db"] == pytest.approx(wanted["psnr_db"], rel=1e-4)
    assert {file.name for file in tmp_path.iterdir()} == FILES


def _train_alone(folder: str, config: dict[str, Any]) -> None:
    run_train(TrainSettings(**config, output=Path(folder)))


@pytest.mark.slow
def test_own_processes(alone: tuple[Path, str], tmp_path: Path) -> None:
    program = "import sys; from shardinv.cli.main import app; sys.exit(app(prog_name='shardinv'))"
    output = tmp_path / "out"
    words = ["train", str(_file(tmp_path)), "--epochs", "1", "--output", str(output)]
    run = launch_script(program, arguments=words).check()
    assert run.stdout.count("epoch 1/1") == 1  # one rank speaks
    assert {file.name for file in output.iterdir()} == FILES
    result = _result(output)
    assert result["ranks"] == 2
    # The schedule ends at its first epoch, so that the last steps differ; the start doesn't.
    expected = _result(alone[0])["history"]
    assert result["history"]["start_db"] == pytest.approx(expected["start_db"], rel=1e-5)
    assert result["history"]["loss"][0] == pytest.approx(expected["loss"][0], rel=1e-4)
