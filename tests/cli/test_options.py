"""Options made from a settings class, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer
from pydantic import ValidationError
from typer.testing import CliRunner

from shardinv import __version__
from shardinv.cli.demo import DemoSettings
from shardinv.cli.errors import UsageError
from shardinv.cli.main import app
from shardinv.cli.options import command, parse
from shardinv.io import write_image

runner = CliRunner()


def _app(found: list[DemoSettings]) -> typer.Typer:
    def take(settings: DemoSettings) -> int:
        """Take the settings."""
        found.append(settings)
        return 3 if settings.check else 0

    own = typer.Typer()
    own.command("take")(command(DemoSettings, take))
    return own


def test_fields_are_options() -> None:
    found: list[DemoSettings] = []
    words = "--size 256 --sigma-end 0.01 --check --device cpu --output there"
    result = runner.invoke(_app(found), words.split())
    assert result.exit_code == 3  # what the command returned
    assert found == [
        DemoSettings(size=256, sigma_end=0.01, check=True, device="cpu", output=Path("there"))
    ]
    runner.invoke(_app(found), [])
    assert found[1] == DemoSettings()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tile -3", "--tile must be greater than or equal to 8, got -3"),
        ("--overlap -1", "--overlap must be greater than or equal to 0, got -1"),
        ("--sigma-end 0", "--sigma-end must be greater than 0, got 0.0"),
        ("--iterations 0", "--iterations must be greater than or equal to 1, got 0"),
        ("--size 63", "--size must be greater than or equal to 64, got 63"),
        ("--overlap 65 --tile 64", "--overlap 65 is wider than --tile 64"),
        ("--noise nan", "--noise must be a finite number, got nan"),
        ("--photograph none.jpg", "--photograph: there is no file none.jpg"),
        ("--denoiser lena", "--denoiser: 'lena' is neither a denoiser that ships"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str, tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", *words.split(), "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert f"Error: {message}" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_unknown_option() -> None:
    result = runner.invoke(app, ["demo", "--tiel", "64"])
    assert result.exit_code == 2
    assert "No such option: --tiel" in result.output


def test_unknown_setting() -> None:
    with pytest.raises(ValidationError):
        DemoSettings(tiel=64)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="--tiel"):
        parse(DemoSettings, {"tiel": 64})


def test_small_photograph(tmp_path: Path) -> None:
    path = tmp_path / "small.png"
    write_image(path, torch.rand(3, 50, 300))
    result = runner.invoke(app, ["demo", "--photograph", str(path), "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert "too small: its shorter side has 50 pixels, 64 are needed" in result.output


def test_output_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    result = runner.invoke(app, ["demo", "--output", str(path)])
    assert result.exit_code == 2
    assert "can't be made or is no folder" in result.output


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.output == f"shardinv {__version__}\n"


@pytest.mark.parametrize(
    ("options", "photograph", "side"),
    [
        ({}, (3000, 2000), 1024),
        ({}, (301, 500), 300),
        ({"factor": 3}, (3000, 2000), 1020),
        ({"size": 4096}, (3000, 2000), 4096),
        ({"size": 101, "factor": 4}, (3000, 2000), 100),
    ],
)
def test_side(options: dict[str, int], photograph: tuple[int, int], side: int) -> None:
    assert DemoSettings(**options).side(*photograph) == side  # type: ignore[arg-type]


def test_sigmas() -> None:
    assert DemoSettings(noise=0.04).sigmas == pytest.approx((0.02, 0.016))
    assert DemoSettings(sigma=0.1).sigmas == pytest.approx((0.1, 0.08))
    assert DemoSettings(noise=0).sigmas[0] > 0
