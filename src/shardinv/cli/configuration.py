"""Configuration files: YAML read into the classes that describe it, mistakes told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from shardinv.cli.errors import UsageError

Settings = TypeVar("Settings", bound=BaseModel)


def read_yaml(path: Path, example: str) -> dict[str, Any]:
    """What a file has.

    Parameters
    ----------
    path
        The file.
    example
        What a file has at its top, for the error.

    Raises
    ------
    UsageError
        If it can't be read or has no keys.
    """
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict):
        raise UsageError(f"{path} must have {example}")
    return given


def settings_of(kind: type[Settings], given: dict[str, Any], path: Path) -> Settings:
    """Settings from what a file has.

    Raises
    ------
    UsageError
        Naming each key that was refused.
    """
    try:
        return kind(**given)
    except ValidationError as error:
        raise UsageError(f"{path}: " + "; ".join(map(_line, error.errors()))) from None


def _line(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"there is no {key}"
    message = message.replace("Input should be", "must be", 1)
    return f"{key} {message}, got {problem['input']!r}" if key else message
