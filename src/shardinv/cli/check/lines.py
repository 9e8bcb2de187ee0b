"""What was found, for people: a line each, with the remedy below."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from shardinv.study.checks.finding import Finding, worst
from shardinv.study.plan.point import Point

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}
_WIDTH = 100
_INDENT = 32


def console() -> Console:
    """Standard output; in a file or a pipe, of a width that reads well."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def show_head(out: Console, name: str, point: Point) -> None:
    """What is about to be checked."""
    tiles = "whole image" if point.tile is None else f"tiles {point.tile}, overlap {point.overlap}"
    axes = 2 if point.problem == "photograph" else 3
    side = " × ".join([str(point.size)] * axes)
    device = "GPU" if point.device == "gpu" else "CPU"
    network = f"{point.network} on {tiles}"
    if point.precision != "float32":
        network += f" in {point.precision}"
    settings = (
        f"{point.problem} of {side}, {point.frames} operators, {network}; "
        f"{point.ranks} rank{'s' * (point.ranks != 1)} on the {device}, image {point.layout}"
    )
    out.print(Text(name, style="bold"))
    out.print(Text(textwrap.fill(settings, min(out.width, _WIDTH))), soft_wrap=True)
    if point.task == "train":
        out.print("Training: the reconstruction with the same operators and tiles is checked.")


def show(out: Console, finding: Finding) -> None:
    """One finding, and below it what to do."""
    indent = " " * _INDENT
    width = min(out.width, _WIDTH) - _INDENT
    lines = textwrap.wrap(finding.message, width, break_long_words=False) or [""]
    text = Text.assemble(
        (f"{finding.status:9}", _STYLES[finding.status]), f"{finding.name:{_INDENT - 9}}", lines[0]
    )
    for line in lines[1:]:
        text.append(f"\n{indent}{line}")
    for number, line in enumerate(textwrap.wrap(finding.remedy, width - 2, break_long_words=False)):
        text.append(f"\n{indent}{'  ' if number else '→ '}{line}", style="bold")
    out.print(text, soft_wrap=True)


def show_summary(out: Console, findings: Sequence[Finding]) -> None:
    """How many of each."""
    counts = {
        status: sum(finding.status == status for finding in findings)
        for status in ("ok", "warning", "failed")
    }
    words = f"{counts['ok']} ok, {counts['warning']} warnings, {counts['failed']} failed"
    words = words.replace("1 warnings", "1 warning") if counts["warning"] == 1 else words
    out.print(Text(words, style=_STYLES[worst(findings)]))
