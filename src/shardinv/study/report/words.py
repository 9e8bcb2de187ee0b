"""What the study says, in a few plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.analysis.agreement import Agreement
from shardinv.study.analysis.summary import Row
from shardinv.study.collection import Collection
from shardinv.study.report.naming import Naming, kind
from shardinv.study.report.numbers import count, number, percent, seconds


def summary(collection: Collection, naming: Naming) -> list[tuple[str, str]]:
    """Headings and sentences, for the top of the report."""
    rows = main(collection)
    found = [
        ("Largest" if collection.weak else "Fastest", _best(rows, naming, weak=collection.weak)),
        ("Held back by", _limit(rows, naming)),
        ("Beside deepinv.distributed", _peer(rows, naming)),
        ("Quality", _quality(collection.rows)),
    ]
    if collection.failed:
        failed = count(len(collection.failed), "point")
        found.append(("Not measured", f"{failed} failed; their messages are under provenance."))
    return [(title, text) for title, text in found if text]


def main(collection: Collection) -> list[Row]:
    """The points that the first sentences are about: those of the largest problem."""
    rows = list(collection.rows)
    if collection.weak:
        return rows
    most = max(row.point.pixels for row in rows)
    return [row for row in rows if row.point.pixels == most]


def _best(rows: Sequence[Row], naming: Naming, *, weak: bool) -> str:
    best = min(rows, key=lambda row: (-row.point.pixels if weak else 0, row.seconds[0]))
    middle, low, high = best.seconds
    text = f"{naming.name(best.point)}: {seconds(middle)} an iteration"
    text += f" ({seconds(low)} to {seconds(high)})" if low < high else ""
    if best.scaling is None:
        others = any(row.point.ranks > 1 for row in rows)
        return f"{text}. No number of ranks makes it faster." if others else f"{text}."
    pixels = ", at equal pixels," if weak else ","
    return (
        f"{text}{pixels} {number(best.scaling.speedup)} times as fast as the baseline "
        f"({_baseline(rows, naming)}): an efficiency of {percent(best.scaling.efficiency)}."
    )


def _baseline(rows: Sequence[Row], naming: Naming) -> str:
    found = [row for row in rows if row.scaling is None]
    return naming.name(found[0].point) if found else "a smaller problem"


def _limit(rows: Sequence[Row], naming: Naming) -> str:
    known = [row for row in rows if row.limit and row.point.ranks > 1]
    known = [row for row in known if row.point.system == "shardinv"] or known
    known = known or [row for row in rows if row.limit]
    if not known:
        return ""
    best = min(known, key=lambda row: row.seconds[0])
    return f"{naming.name(best.point)}: {best.limit}"


def _peer(rows: Sequence[Row], naming: Naming) -> str:
    peers = [row for row in rows if row.point.system == "deepinv.distributed"]
    own = [row for row in rows if row.point.system == "shardinv"]
    common = {row.point.ranks for row in peers} & {row.point.ranks for row in own}
    if not common:
        return ""
    ranks = max(common)
    peer = min((r for r in peers if r.point.ranks == ranks), key=lambda row: row.seconds[0])
    best = min((r for r in own if r.point.ranks == ranks), key=lambda row: row.seconds[0])
    ratio = peer.seconds[0] / best.seconds[0]
    apart = best.seconds[2] < peer.seconds[1] or peer.seconds[2] < best.seconds[1]
    text = f"On {count(ranks, 'rank')} {kind(best.point)} takes {seconds(best.seconds[0])} an "
    text += f"iteration, deepinv.distributed {seconds(peer.seconds[0])}: "
    if not apart:
        return text + "the intervals overlap, so neither is surely faster."
    return text + (
        f"{number(ratio)} times as fast." if ratio > 1 else f"{number(1 / ratio)} times as slow."
    )


def _quality(rows: Sequence[Row]) -> str:
    sentences = [
        f"Beside {meaning}, after the last iteration {words}."
        for reference, meaning in (
            ("untiled", "undistributed DeepInverse without tiles"),
            ("tiled", "the same tiles on one rank"),
        )
        if (words := _differences(rows, reference))
    ]
    if sentences:
        return " ".join(sentences)
    low, high = min(row.psnr_db for row in rows), max(row.psnr_db for row in rows)
    spread = f"{low:.2f} dB" if low == high else f"{low:.2f} to {high:.2f} dB"
    return f"PSNR ends at {spread}; no point was compared with a reference run."


def _differences(rows: Sequence[Row], reference: str) -> str:
    """The largest of each system on several ranks."""
    found: dict[str, list[Agreement]] = {"shardinv": []}
    for row in rows:
        agreement = row.measurements[0].agreement.get(reference)
        if agreement and row.point.ranks > 1:
            found.setdefault(row.point.system, []).append(agreement[-1])
    return ", ".join(
        f"{system} differs by at most {number(max(a.relative for a in several), 2)} (relative) and "
        f"{number(max(abs(a.psnr_difference_db) for a in several), 2)} dB"
        for system, several in found.items()
        if several
    )
