"""Whether all that a run reads is at hand on every rank, the same, with nothing to download."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from shardinv.denoise.memory import show_memory
from shardinv.io import PHOTOGRAPHS, WEIGHTS, shipped_file
from shardinv.problems import weights_file
from shardinv.study.checks.finding import Finding, ranks
from shardinv.study.plan.point import Point

Seen = Mapping[str, tuple[int, str] | str]
"""Of each file its bytes and their digest, or why it can't be read."""


def wanted_files(point: Point) -> dict[str, Path]:
    """The files that a point reads."""
    channels = 3 if point.problem == "photograph" else 1
    # A colour network denoises grey volumes too, and is the only one that ships.
    network = point.network
    files = {"network": weights_file(network, 3 if network in WEIGHTS else channels)}
    if point.problem == "photograph":
        name = point.photograph
        files["photograph"] = shipped_file(name) if name in PHOTOGRAPHS else Path(name)
    return files


def seen_here(files: Mapping[str, Path]) -> Seen:
    """What this rank finds of them."""
    found: dict[str, tuple[int, str] | str] = {}
    for what, path in files.items():
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[what] = (path.stat().st_size, digest[:16])
        except OSError as error:
            found[what] = error.strerror or str(error)
    return found


def weights(files: Mapping[str, Path], told: Sequence[Seen]) -> Finding:
    """Whether every rank finds the same files.

    Parameters
    ----------
    files
        From :func:`wanted_files`.
    told
        What each rank found, from :func:`seen_here`.
    """
    name = "machine: files"
    figures = {"files": {what: str(path) for what, path in files.items()}, "seen": list(told)}
    for what, path in files.items():
        missing = [rank for rank, seen in enumerate(told) if isinstance(seen[what], str)]
        if missing:
            message = f"{what} {path}: {told[missing[0]][what]}, on {ranks(missing)}"
            known = ", ".join(WEIGHTS if what == "network" else PHOTOGRAPHS)
            remedy = (
                f"give {what} a name that ships ({known}) or a file that all hosts see; what is "
                "downloaded (drunet-full), fetch before, once for all ranks"
            )
            return Finding(name, "failed", figures, message, remedy)
        other = [rank for rank, seen in enumerate(told) if seen[what] != told[0][what]]
        if other:
            message = f"{what} {path}: {ranks(other)} reads another content than rank 0"
            remedy = f"copy rank 0's {path.name} to that host, or put it into a folder they share"
            return Finding(name, "failed", figures, message, remedy)
    shown = ", ".join(
        f"{what} {path.name} ({show_memory(seen[0])})"
        for what, path in files.items()
        for seen in [told[0][what]]
        if not isinstance(seen, str)
    )
    where = "the same on all ranks, " if len(told) > 1 else ""
    return Finding(name, "ok", figures, f"{shown}: at hand, {where}nothing to download")
