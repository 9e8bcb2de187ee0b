"""The demo's state: what is saved when, and what may be taken up by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shardinv import DistributedContext
from shardinv.cli.demo.checkpoints import load_checkpoint, saver
from shardinv.cli.demo.settings import DemoSettings
from shardinv.cli.demo.track import Track
from shardinv.cli.errors import UsageError
from shardinv.tensor import ShardedTensor

SIDE = 12
X = torch.arange(3.0 * SIDE * SIDE).reshape(1, 3, SIDE, SIDE)


def _settings(folder: Path, **options: Any) -> DemoSettings:
    return DemoSettings(**({"iterations": 5, "output": folder} | options))


def _run(ctx: DistributedContext, settings: DemoSettings, iterations: int) -> list[int]:
    """Save as the demo does; returns after which iterations a checkpoint was written."""
    save = saver(settings, SIDE, ctx)
    track, written = Track(), []
    for number in range(1, iterations + 1):
        track.seconds.append(0.1 * number)
        track.psnr_db.append(30.0 + number)
        track.residuals.append(1 / number)
        before = ctx.latest(settings.checkpoints)
        if save is not None:
            save(X * number, track)
        if ctx.latest(settings.checkpoints) != before:
            written.append(number)
    return written


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, []),
        ({"resume": True}, [1, 2, 3, 4, 5]),
        ({"checkpoint_every": 2}, [2, 4, 5]),
        ({"checkpoint_every": 9, "resume": True}, [5]),
    ],
)
def test_saved_now_and_then(options: dict[str, Any], written: list[int], tmp_path: Path) -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        assert _run(ctx, _settings(tmp_path, **options), 5) == written


def test_taken_up_in_either_layout(tmp_path: Path) -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        _run(ctx, _settings(tmp_path, checkpoint_every=3), 4)
        for layout in ("replicated", "sharded"):
            settings = _settings(tmp_path, resume=True, layout=layout, batch=2, checkpoint_every=1)
            x, track = load_checkpoint(settings, SIDE, ctx, X)
            assert isinstance(x, ShardedTensor) == (layout == "sharded")
            assert torch.equal(ctx.gather(x), X * 3)
            assert track.psnr_db == [31, 32, 33]
            assert len(track.seconds) == len(track.residuals) == 3
            assert track.last_bytes == 0


def test_a_new_run_removes_what_an_old_one_left(tmp_path: Path) -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        _run(ctx, _settings(tmp_path, resume=True), 2)
        x, track = load_checkpoint(_settings(tmp_path, checkpoint_every=2), SIDE, ctx, X)
        assert x is X
        assert track.seconds == []
        assert not (tmp_path / "checkpoints").exists()
        # Nothing to take up is no mistake.
        x, _ = load_checkpoint(_settings(tmp_path, resume=True), SIDE, ctx, X)
        assert x is X


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 3}, "with --seed 0, not 3; give the same, or leave --resume away"),
        ({"iterations": 7}, "with --iterations 5, not 7"),
        ({"sigma_end": 0.5}, "with --sigma-end 0.012, not 0.5"),
    ],
)
def test_other_settings(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with DistributedContext(device_mode="cpu") as ctx:
        _run(ctx, _settings(tmp_path, resume=True), 2)
        with pytest.raises(UsageError, match=message):
            load_checkpoint(_settings(tmp_path, resume=True, **options), SIDE, ctx, X)
        with pytest.raises(UsageError, match="with --size 12, not 14"):
            load_checkpoint(_settings(tmp_path, resume=True), 14, ctx, X)
