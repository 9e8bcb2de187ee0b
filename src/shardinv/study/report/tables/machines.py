"""Where points were measured: one line for each machine, and what it ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardinv.study.measurement import Measurement
from shardinv.study.report.tables.table import Cell, Column, Table, filled

# What each point has of its own: not a property of the machine.
_OWN = {"time", "load_before"}


def machines(measurements: Sequence[Measurement]) -> Table | None:
    """Hosts, processors, GPUs and the load before points; None where nothing was recorded."""
    known = [m.machine for m in measurements if m.machine]
    if not known:
        return None
    together: dict[str, list[dict[str, Any]]] = {}
    for machine in known:
        together.setdefault(repr(_constant(machine)), []).append(machine)
    names = list(dict.fromkeys(name for machine in known for name in _constant(machine)))
    columns = [
        Column("points measured"),
        Column("first"),
        Column("last"),
        Column("most load before", lambda value: f"{value:.2f}"),
        *(Column(name.replace("_", " ")) for name in names),
    ]
    rows: list[list[Cell]] = []
    for group in together.values():
        times = sorted(str(each["time"]) for each in group if each.get("time"))
        loads = [each["load_before"] for each in group if each.get("load_before") is not None]
        rows.append(
            [
                len(group),
                times[0] if times else None,
                times[-1] if times else None,
                max(loads) if loads else None,
                *(_plain(group[0].get(name)) for name in names),
            ]
        )
    return filled("machines", "Machines", "", columns, rows)


def versions(measurements: Sequence[Measurement]) -> Table | None:
    """Of packages; more than one column of versions where points differ."""
    known = [m.machine["versions"] for m in measurements if m.machine.get("versions")]
    if not known:
        return None
    names = dict.fromkeys(name for each in known for name in each)
    rows = [
        (name, ", ".join(dict.fromkeys(str(each[name]) for each in known if each.get(name))))
        for name in names
    ]
    columns = [Column("package"), Column("version")]
    return filled("versions", "Versions", "", columns, [row for row in rows if row[1]])


def _constant(machine: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in machine.items() if name not in {*_OWN, "versions"}}


def _plain(value: Any) -> Cell:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return value if isinstance(value, (int, float, str)) or value is None else str(value)
