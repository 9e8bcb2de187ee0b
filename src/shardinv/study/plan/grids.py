"""What a study measures: grids of points."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shardinv.study.plan.launch import LaunchSettings
from shardinv.study.plan.point import Point


class Study(BaseModel):
    """Points, as grids: every combination of the values in a grid's lists is one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("study", description="Of the study.")
    common: dict[str, Any] = Field(default={}, description="What all points have.")
    grids: list[dict[str, Any]] = Field(
        min_length=1, description="For each key of a point one value, or a list of them."
    )
    repeats: int = Field(1, ge=1, description="How often each point is measured.")
    scaling: Literal["strong", "weak"] = Field(
        "strong",
        description="What a point is compared with: the same problem on fewer ranks, or a smaller "
        "one, whose time is scaled by the pixels.",
    )
    price: float | None = Field(
        None, gt=0, description="Of an hour of one worker, in a currency of your choice."
    )
    launch: LaunchSettings = Field(
        default_factory=LaunchSettings,
        description="Where points run: here, or as jobs of a SLURM cluster.",
    )

    @model_validator(mode="before")
    @classmethod
    def _points_make_sense(cls, given: Any) -> Any:
        """Refuse a point that makes no sense when the file is read, with its key."""
        if isinstance(given, dict) and isinstance(given.get("grids"), list):
            for number, grid in enumerate(given["grids"]):
                for values in _combinations({**(given.get("common") or {}), **grid}):
                    try:
                        Point(**values)
                    except ValidationError as error:
                        first = error.errors()[0]
                        where = ".".join(map(str, first["loc"]))
                        message = str(first["msg"]).removeprefix("Value error, ")
                        raise ValueError(
                            f"grid {number + 1}: {where + ': ' if where else ''}{message}"
                        ) from None
        return given

    @property
    def points(self) -> list[Point]:
        """All points: reference runs of quality first, then each repetition as a whole.

        A machine that slows down then slows all points alike.
        """
        found = self._of_grids()
        references = [r for point in found for r in point.references.values()]
        return list({point.key: point for point in [*references, *found]}.values())

    def _of_grids(self) -> list[Point]:
        return [
            point
            for repeat in range(self.repeats)
            for grid in self.grids
            for values in _combinations({**self.common, **grid})
            for point in [Point(**values, repeat=repeat)]
        ]


def _combinations(grid: dict[str, Any]) -> Iterator[dict[str, Any]]:
    lists = [value if isinstance(value, list) else [value] for value in grid.values()]
    for values in product(*lists):
        yield dict(zip(grid, values, strict=True))
