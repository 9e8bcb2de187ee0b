"""The page: one file of HTML with its style, its script, plotly and all pictures in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from shardinv.study.report.interactive import plotly
from shardinv.study.report.palette import dark
from shardinv.study.report.pictures import Gallery
from shardinv.study.report.provenance import Provenance
from shardinv.study.report.sections import Section, charts


@dataclass(frozen=True)
class Page:
    """What a page shows.

    Parameters
    ----------
    title
        Of the study.
    summary
        Headings and sentences at the top.
    sections
        All of them.
    gallery
        Reconstructions; None without any.
    provenance
        At the end.
    failed
        Key and message of points that failed.
    files
        Groups of files beside the page: title, and their paths from there.
    """

    title: str
    summary: list[tuple[str, str]]
    sections: list[Section]
    gallery: Gallery | None
    provenance: Provenance
    failed: tuple[tuple[str, str], ...]
    files: list[tuple[str, list[str]]]


def render(page: Page) -> str:
    """The whole file."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # A section of reconstructions alone is one too.
    shown = [s for s in page.sections if s.figures or s.tables or (s.pictures and page.gallery)]
    return environment.get_template("page.html.j2").render(
        page=page,
        sections=shown,
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        plotly=Markup(get_plotlyjs()),
        data=_json(
            {
                "charts": {
                    chart.key: {**plotly(chart), "says": chart.says, "notes": chart.notes}
                    for chart in charts(shown)
                },
                "dark": dark(),
                "pictures": page.gallery.pictures if page.gallery else {},
            }
        ),
    )


def _json(value: Any) -> Markup:
    # Nothing in the data may end the script that holds it.
    return Markup(json.dumps(value, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c"))


def _asset(name: str) -> str:
    return (files("shardinv.study.report") / "assets" / name).read_text(encoding="utf-8")
