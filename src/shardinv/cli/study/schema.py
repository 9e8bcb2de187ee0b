"""The schema of a study's configuration, for editors that check and complete it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shardinv.io import write_json
from shardinv.study.plan.grids import Study
from shardinv.study.plan.point import Point

File = Annotated[Path | None, typer.Argument(help="Where to write it; default: print it.")]


def schema(file: File = None) -> None:
    """Print or write the JSON schema of configurations: all keys, their types and meanings.

    Editors take it from the first line of a file: # yaml-language-server: $schema=study.schema.json
    """
    if file is None:
        typer.echo(json.dumps(study_schema(), indent=2))
        return
    write_json(file, study_schema())
    typer.echo(f"wrote {file}")


def study_schema() -> dict[str, Any]:
    """The schema of `Study`, in which a grid's keys are a point's, each one value or a list."""
    found = Study.model_json_schema()
    point = Point.model_json_schema()
    single = point["properties"]
    several = {
        key: {
            "description": value.get("description", ""),
            "anyOf": [value, {"type": "array", "items": value, "minItems": 1}],
        }
        for key, value in single.items()
    }
    grid = {"type": "object", "properties": several, "additionalProperties": False}
    found["properties"]["common"] |= grid
    found["properties"]["grids"]["items"] = grid
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return found
