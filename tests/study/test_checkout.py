"""The state of the source that a result came from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shardinv.study.checkout import checkout


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_checkout(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    assert checkout(package) is None  # no repository
    _git(tmp_path, "init", "-q")
    assert checkout(package) is None  # in one that doesn't track it
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    found = checkout(package)
    assert found is not None
    assert len(found.commit) == 40
    assert not found.changed
    (package / "new.py").write_text("", encoding="utf-8")
    assert checkout(package) != found
