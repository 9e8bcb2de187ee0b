"""Where a report's numbers come from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from shardinv.study.checkout import checkout
from shardinv.study.collection import Collection
from shardinv.study.report.tables import Table, machines, versions


@dataclass(frozen=True)
class Provenance:
    """All of it.

    Parameters
    ----------
    facts
        Name and value.
    configuration
        As YAML; empty where it isn't known.
    tables
        Machines and versions.
    """

    facts: tuple[tuple[str, str], ...]
    configuration: str
    tables: tuple[Table, ...]


def provenance(collection: Collection, time: str) -> Provenance:
    """From the results, ``study.json`` and the checkout; ``time`` is that of the report."""
    measured = collection.measurements
    facts = [("Measured", _measured(collection))]
    for number, run in enumerate(collection.study.get("runs", []), 1):
        facts.append((f"Run {number}", _run(run)))
    facts += [
        ("Report", f"{time}, shardinv {version('shardinv')}, {_state(_checkout())}"),
        ("SHA-256 of the results", hash_of_results(collection.folder)),
    ]
    found = [machines(measured), versions(measured)]
    given = _without_nothing(collection.plan)
    configuration = yaml.safe_dump(given, sort_keys=False, allow_unicode=True) if given else ""
    return Provenance(
        tuple(facts), configuration, tuple(table for table in found if table is not None)
    )


def hash_of_results(folder: Path) -> str:
    r"""SHA-256 over names and contents of the points' files, in the order of their names.

    The same as of ``cd points; for f in *.json; do printf '%s\0' $f; cat $f; done | sha256sum``.
    """
    found = hashlib.sha256()
    for file in sorted((folder / "points").glob("*.json"), key=lambda each: each.name):
        found.update(file.name.encode() + b"\0")
        found.update(file.read_bytes())
    return found.hexdigest()


def _without_nothing(value: Any) -> Any:
    """Without keys that hold nothing: of those that nobody has set there are many."""
    if not isinstance(value, dict):
        return value
    kept = {name: _without_nothing(each) for name, each in value.items()}
    return {name: each for name, each in kept.items() if each not in (None, [], {})}


def _measured(collection: Collection) -> str:
    times = sorted(str(m.machine["time"]) for m in collection.measurements if m.machine.get("time"))
    when = f", {times[0]} to {times[-1]}" if times else ""
    return f"{len(collection.rows)} points in {len(collection.measurements)} runs{when}"


def _run(run: dict[str, Any]) -> str:
    return f"{run.get('time', '')}, {run.get('command', '')}, {_state(run.get('checkout'))}"


def _checkout() -> dict[str, Any] | None:
    found = checkout()
    return None if found is None else vars(found)


def _state(found: dict[str, Any] | None) -> str:
    if not found:
        return "not from a checkout"
    return f"commit {found['commit'][:12]}" + (", with changes" if found["changed"] else "")
