"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardinv.io import atomic_file, write_json
from shardinv.io.atomic import atomic_folder


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "note.txt"
    for text in ("first", "second"):
        with atomic_file(path) as temporary:
            temporary.write_text(text)
            # Same folder, so that the rename can't cross file systems; same suffix, for libraries.
            assert temporary.parent == path.parent
            assert temporary.suffix == ".txt"
        assert path.read_text() == text
    assert [file.name for file in path.parent.iterdir()] == ["note.txt"]


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")

    def fail() -> None:
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        fail()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["note.txt"]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with atomic_file(tmp_path / "ours") as temporary:
        temporary.write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"σ": [0.1, 2]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"σ": [0.1, 2]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"psnr": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8")) == {"σ": [0.1, 2]}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="denied"), atomic_file(tmp_path / "x"):
        pass


def test_a_folder_is_replaced_or_left(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    for text in ("first", "second"):
        with atomic_folder(path) as temporary:
            assert temporary.suffix == ".zarr"
            (temporary / "part").write_text(text)
        assert (path / "part").read_text() == text

    def fail() -> None:
        with atomic_folder(path) as temporary:
            (temporary / "part").write_text("half")
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        fail()
    assert (path / "part").read_text() == "second"
    assert list(tmp_path.iterdir()) == [path]
