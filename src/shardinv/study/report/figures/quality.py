"""How good reconstructions are at each iteration, and how far from those of reference runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from shardinv.study.analysis.agreement import Agreement, growth
from shardinv.study.analysis.summary import Row
from shardinv.study.published import published_quality
from shardinv.study.report.axes import counted, logarithmic
from shardinv.study.report.charts import Axis, Dash, Line, LineChart, Marker
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import count, number

_REFERENCES = {
    "untiled": "undistributed DeepInverse on the whole image: what halos and ranks change together",
    "tiled": "the same tiles on one rank: what the ranks alone change",
}
# More lines than this can't be told apart.
_MOST = 12


def trajectories(rows: Sequence[Row], naming: Naming) -> list[LineChart]:
    """PSNR and SSIM."""
    several = [row for row in rows if len(row.measurements[0].psnr_db) > 1]
    found = []
    if several:
        best = max(several, key=lambda row: row.psnr_db)
        last = [r.measurements[0].psnr_db[-1] - r.measurements[0].psnr_db[-2] for r in several]
        says = f"PSNR against the truth; {naming.name(best.point)} ends highest, at "
        says += f"{best.psnr_db:.2f} dB. The last iteration still changes it by at most "
        says += f"{number(max(map(abs, last)), 2)} dB."
        lines = _lines(several, naming, lambda row: row.measurements[0].psnr_db)
        found.append(_chart("psnr", "PSNR", says, "PSNR in dB", lines))
    scored = [row for row in rows if row.measurements[0].ssim]
    if scored:
        best = max(scored, key=lambda row: row.measurements[0].ssim[-1])
        says = f"Structural similarity to the truth; {naming.name(best.point)} ends highest, at "
        says += f"{best.measurements[0].ssim[-1]:.4f}."
        lines = _lines(scored, naming, lambda row: row.measurements[0].ssim)
        found.append(_chart("ssim", "SSIM", says, "SSIM", lines))
    return found


def agreements(rows: Sequence[Row], naming: Naming, published: bool) -> list[LineChart]:
    """Relative distance to each reference run and, along seams, to the untiled one."""
    found = []
    for reference, meaning in _REFERENCES.items():
        known = [row for row in rows if reference in row.measurements[0].agreement]
        # A run beside itself.
        known = [row for row in known if any(e > 0 for e in _errors(row, reference, _relative))]
        if known:
            lines = _lines(known, naming, partial(_errors, reference=reference, part=_relative))
            says = f"Distance to {meaning}. Relative, in the Euclidean norm. "
            says += _growing(known, reference)
            title = f"Distance to the {reference} reference"
            chart = _chart(f"distance-{reference}", title, says, "relative distance", lines, True)
            notes = [
                _grows(naming.name(r.point), _errors(r, reference, _relative)[1:]) for r in known
            ]
            found.append(replace(chart, notes=tuple(notes)))
    seamed = [
        row
        for row in rows
        if any(e > 0 for e in _errors(row, "untiled", lambda agreement: agreement.seams or 0.0))
    ]
    if seamed:
        lines = _lines(seamed, naming, lambda row: _errors(row, "untiled", lambda a: a.seams or 0))
        says = "Distance to the untiled reference in a band along the seams of tiles."
        found.append(
            _chart("seams", "Distance along seams", says, "relative distance", lines, True)
        )
    found += _psnr_differences(rows, naming, published)
    return found


def _psnr_differences(rows: Sequence[Row], naming: Naming, published: bool) -> list[LineChart]:
    known = [row for row in rows if "untiled" in row.measurements[0].agreement]

    def differences(row: Row) -> list[float]:
        return _errors(row, "untiled", lambda agreement: abs(agreement.psnr_difference_db))

    known = [row for row in known if any(differences(row))]
    if not known:
        return []
    lines = _lines(known, naming, differences)
    most = max(max(differences(row)) for row in known)
    says = f"How far the PSNR is from that of the untiled reference: at most {number(most, 2)} dB."
    if published:
        lines += _published()
        says += (
            " The published runs compare tiles on several GPUs with one GPU without tiles; at "
            "2048² their difference grows with the iterations."
        )
    title = "PSNR beside the untiled reference"
    return [_chart("psnr-difference", title, says, "absolute difference in dB", lines, True)]


def _chart(
    key: str, title: str, says: str, quantity: str, lines: list[Line], decades: bool = False
) -> LineChart:
    values = [y for line in lines for y in line.y]
    iterations = [x for line in lines for x in line.x]
    step = max(1, math.ceil((max(iterations) - min(iterations)) / 10))
    x = counted(
        "iteration",
        range(int(min(iterations)), int(max(iterations)) + 1, step),
        logarithmic=False,
    )
    return LineChart(
        key,
        title,
        says,
        x,
        logarithmic(quantity, values) if decades else Axis(quantity),
        tuple(lines),
    )


def _lines(
    rows: Sequence[Row], naming: Naming, values: Callable[[Row], Sequence[float]]
) -> list[Line]:
    """A line for each point; with too many, the one with most ranks of each series."""
    if len(rows) > _MOST:
        last = {naming.series(row.point): row for row in rows}
        rows = list(last.values())
    found = []
    for row in rows:
        kept = [(n, v) for n, v in enumerate(values(row)) if math.isfinite(v) and v != 0]
        colour, dash, marker = naming.look(row.point, ())
        x, y = tuple(float(n) for n, _ in kept), tuple(v for _, v in kept)
        found.append(Line(naming.name(row.point), x, y, colour, dash=dash, marker=marker))
    return found


def _errors(row: Row, reference: str, part: Callable[[Agreement], float]) -> list[float]:
    return [part(each) for each in row.measurements[0].agreement.get(reference, [])]


def _relative(agreement: Agreement) -> float:
    return agreement.relative


def _growing(rows: Sequence[Row], reference: str) -> str:
    """Of how many points the test says that the difference grows."""
    tests = [growth(_errors(row, reference, _relative)[1:]) for row in rows]
    known = [test for test in tests if test is not None]
    if not known:
        return "There are too few iterations to tell whether it grows."
    growing = [test.factor for test in known if test.grows]
    if not growing:
        return f"Of {count(len(known), 'point')}, it grows with the iterations in none."
    fold = f"{number(min(growing))}"
    fold += f" to {number(max(growing))}" if max(growing) > 1.005 * min(growing) else ""
    return (
        f"Of {count(len(known), 'point')}, it grows with the iterations in {len(growing)}, "
        f"{fold}-fold each."
    )


def _grows(name: str, errors: Sequence[float]) -> str:
    """What the test for growth says."""
    found = growth(errors)
    if found is None:
        return f"{name}: too few iterations to tell whether the difference grows."
    low, high = found.interval
    size = f"{number(found.factor)}-fold an iteration ({number(low)} to {number(high)})"
    if found.grows:
        return f"{name}: the difference grows, {size}."
    return f"{name}: the difference does not grow ({size}, p = {number(found.p_value, 2)})."


def _published() -> list[Line]:
    looks: dict[int, tuple[Dash, Marker]] = {2048: ("dot", "circle"), 4096: ("dash", "square")}
    most: dict[int, int] = {}
    for side, workers in published_quality():
        most[side] = max(workers, most.get(side, 0))
    found = []
    for side, workers in most.items():
        kept = [
            (float(n), abs(difference))
            for n, (_, difference) in enumerate(published_quality()[side, workers])
            if difference
        ]
        dash, marker = looks.get(side, ("dashdot", "diamond"))
        name = f"published {side}², {workers} V100"
        x, y = tuple(n for n, _ in kept), tuple(v for _, v in kept)
        found.append(Line(name, x, y, "published", dash=dash, marker=marker))
    return found
