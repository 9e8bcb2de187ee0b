"""Where efficiency goes: the workers' time, split by the factors that multiply to it."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.analysis.factors import Factor
from shardinv.study.analysis.summary import Row
from shardinv.study.report.charts import Axis, BarChart, Lane, Part
from shardinv.study.report.naming import Naming
from shardinv.study.report.numbers import percent


def shares(factors: Sequence[Factor]) -> dict[str, float]:
    """Of the workers' time: useful work, and what each factor takes. They add up to 1.

    A factor is the time before a cost was added over the time after, so each cost's share of the
    whole time follows from the factors alone.

    Examples
    --------
    >>> found = shares([Factor("halo work", 0.8, ""), Factor("communication", 0.5, "")])
    >>> {name: round(share, 3) for name, share in found.items()}
    {'useful': 0.4, 'halo work': 0.1, 'communication': 0.5}
    """
    after, found = 1.0, dict[str, float]()
    for factor in reversed(factors):
        found[factor.name] = after * (1 - factor.value)
        after *= factor.value
    return {"useful": after, **dict(reversed(found.items()))}


def losses(rows: Sequence[Row], naming: Naming) -> BarChart:
    """One bar for each point whose factors are known."""
    known = [row for row in rows if row.factors]
    split = [shares(row.factors) for row in known]
    names = list(dict.fromkeys(name for each in split for name in each))
    parts = [
        Part(name, tuple(each.get(name, 0.0) for each in split), name, hatched=name == "rest")
        for name in names
    ]
    useful, worst = min(
        ((each["useful"], row) for each, row in zip(split, known, strict=True)),
        key=lambda pair: pair[0],
    )
    says = (
        "Each bar is all workers' time in an iteration. What is useful would do the work without "
        "any distribution: it is the efficiency. The rest is lost to what is named; a part left of "
        "zero is time won. "
        f"Most is lost by {naming.name(worst.point)}: {percent(useful)} is useful; {worst.limit}"
    )
    return BarChart(
        "losses",
        "Where efficiency goes",
        says,
        Axis("share of the workers' time", percent=True),
        Axis(""),
        tuple(Lane(naming.lane(row.point), naming.series(row.point)) for row in known),
        tuple(parts),
        notes=tuple(f"{naming.name(row.point)}: {row.limit}" for row in known),
    )
