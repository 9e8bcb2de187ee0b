"""The keys of a configuration in words, from the classes that describe it."""

from __future__ import annotations

import textwrap
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardinv.study.plan.grids import Study
from shardinv.study.plan.launch import LaunchSettings
from shardinv.study.plan.point import Point

_WIDTH = 78


def keys_in_words() -> str:
    """All keys with their defaults and meanings, for the end of a help text."""
    return "\n\n".join(
        f"\b\n{title}\n{_lines(kind)}"
        for title, kind in (
            ("Keys of a study:", Study),
            ("Keys of common and of a grid:", Point),
            ("Keys of launch:", LaunchSettings),
        )
    )


def _lines(kind: type[BaseModel]) -> str:
    return "\n".join(
        textwrap.fill(
            f"{name}: {field.description}{_default(field)}",
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="      ",
        )
        for name, field in kind.model_fields.items()
    )


def _default(field: FieldInfo) -> str:
    given: Any = field.default
    if field.is_required() or field.default_factory is not None or given in ("", {}, []):
        return ""
    words = {None: "null", True: "true", False: "false"}
    shown = words[given] if given is None or isinstance(given, bool) else given
    return f" [{shown}]"
