"""Reads the files that ship."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.resources import files


def rows(name: str) -> Iterator[dict[str, str]]:
    """Lines of a file, by column."""
    text = (files("shardinv") / "data" / "published" / name).read_text(encoding="utf-8")
    return iter(csv.DictReader(text.splitlines()))
