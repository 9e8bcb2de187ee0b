"""shardinv beside ``deepinv.distributed`` and undistributed DeepInverse, on one problem.

Each measurement runs in fresh processes (``measured``), in turn for the systems that are compared,
so that a machine that slows down slows all of them. ``README.md`` here says what the columns mean.
"""

from __future__ import annotations

import pickle
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from typer import Option

from benchmarks.case import LAYOUTS, PEER, PLAIN, Case, Run, Tiling
from benchmarks.processes import machine, run_ranks
from shardinv.io import write_json

NETWORKS = ["ffdnet"]
SIZES = [512, 1024]
RANKS = [1, 2]
NAMES = list(LAYOUTS)
TILINGS = ["256/64", "256/32", "128/24", "448/32"]


@dataclass
class Outcome:
    """All measurements of a case in one system, or why there are none."""

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    loopback_bytes: list[float] = field(default_factory=list)
    ledger_bytes: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    above_set_up: list[int] = field(default_factory=list)
    iterate: torch.Tensor | None = None
    failure: str | None = None

    def add(self, ranks: list[dict[str, Any]], iterations: int) -> None:
        """Take in one run: its slowest rank's times, its largest rank's memory."""
        self.seconds += [max(times) for times in zip(*(rank["seconds"] for rank in ranks))]
        self.processor_seconds.append(sum(r["processor_seconds"] for r in ranks) / iterations)
        self.loopback_bytes.append(ranks[0]["loopback_bytes"] / iterations / len(ranks))
        if ranks[0]["ledger_bytes"] is not None:
            self.ledger_bytes.append(max(rank["ledger_bytes"] for rank in ranks) / iterations)
        self.peak.append(max(rank["memory_peak_bytes"] for rank in ranks))
        self.above_set_up.append(
            max(rank["memory_peak_bytes"] - rank["memory_before_bytes"] for rank in ranks)
        )

    def summary(self, reference: torch.Tensor | None) -> dict[str, Any]:
        """Numbers for the table and the file."""
        if self.failure is not None:
            return {"failure": self.failure}
        error = None
        if reference is not None and self.iterate is not None:
            error = float((self.iterate - reference).norm() / reference.norm())
        return {
            "seconds_per_iteration": median(self.seconds),
            "seconds_min": min(self.seconds),
            "seconds_max": max(self.seconds),
            "seconds": self.seconds,
            # Of all ranks together: what a machine that others use as well tells best.
            "processor_seconds_per_iteration": median(self.processor_seconds),
            "ledger_bytes_per_iteration": max(self.ledger_bytes) if self.ledger_bytes else None,
            # The least of the repeats: whatever else used the interface came on top.
            "loopback_bytes_per_iteration": min(self.loopback_bytes),
            "memory_peak_bytes": max(self.peak),
            "memory_above_set_up_bytes": max(self.above_set_up),
            "relative_error_to_undistributed": error,
        }


def save_networks(folder: Path, names: list[str]) -> None:
    """The networks as files that the measured processes load: the same weights for all."""
    from deepinv.models import DRUNet

    from shardinv.problems import load_denoiser

    for name in names:
        if name == "ffdnet":
            network: torch.nn.Module = load_denoiser("ffdnet")
        else:
            # Random weights, and not by DRUNet's own start, which takes most of a minute.
            with torch.device("meta"):
                network = DRUNet(pretrained=None)
            network.to_empty(device="cpu").eval().requires_grad_(False)
            generator = torch.Generator().manual_seed(0)
            for p in network.parameters():
                p.normal_(generator=generator).mul_(0.2 / (p.numel() / p.shape[0]) ** 0.5)
        torch.save(network, folder / f"{name}.pt")


def run_once(run: Run, folder: Path, timeout: float) -> list[dict[str, Any]] | str:
    """Start the processes of one measurement; gives each rank's counts, or why it failed."""
    folder.mkdir()
    (folder / "run.pickle").write_bytes(pickle.dumps(run))
    ranks = 1 if run.system == PLAIN else run.case.ranks
    return run_ranks("benchmarks.measured", folder, ranks, timeout)


def schedule(
    cases: list[Case], ours: list[str], repeats: int, iterations: int, warm_up: int
) -> Iterator[tuple[Case, Run]]:
    """All measurements in order. Of systems that are compared, the first and last change places."""
    for case in cases:
        systems = [PLAIN] if case.tiling is None else [PEER, *ours]
        for repeat in range(repeats):
            for system in systems if repeat % 2 == 0 else reversed(systems):
                yield case, Run(system, case, iterations, warm_up)


def table_of(rows: list[dict[str, Any]], title: str) -> Table:
    """A heading for each case and a line for each system."""
    table = Table(title=title)
    table.add_column("system", no_wrap=True)
    for name in ("s/iter", "min", "max", "peer/ours", "MB booked", "MB on wire"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("peak MB", "above", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    heading = ""
    for row in rows:
        case = f"{row['network']} {row['size']}², {_count(row['ranks'], row)}, {row['tiles']}"
        if case != heading:
            table.add_section()
            table.add_row(f"[bold]{case}[/]")
            heading = case
        if "failure" in row:
            table.add_row(f"  {row['system']}", "[red]failed[/]")
            continue
        ratio, error = row.get("peer_over_ours"), row["relative_error_to_undistributed"]
        booked = row["ledger_bytes_per_iteration"]
        table.add_row(
            f"  {row['system']}",
            *(f"{row[f'seconds_{what}']:.3f}" for what in ("per_iteration", "min", "max")),
            "" if ratio is None else f"{ratio:.2f}",
            "" if booked is None else f"{booked / 1e6:.2f}",
            f"{row['loopback_bytes_per_iteration'] / 1e6:.2f}",
            f"{row['memory_peak_bytes'] / 1e6:.0f}",
            f"{row['memory_above_set_up_bytes'] / 1e6:.0f}",
            "" if error is None else f"{error:.1e}",
        )
    return table


def _count(ranks: int, row: dict[str, Any]) -> str:
    unit = "thread" if row["system"] == PLAIN else "rank"
    return f"{ranks} {unit}{'s' if ranks > 1 else ''}"


def rows_of(outcomes: dict[tuple[Case, str], Outcome]) -> list[dict[str, Any]]:
    """The outcomes as plain dictionaries, the reference of each image first."""
    iterates = {
        (case.network, case.size): outcome.iterate
        for (case, system), outcome in outcomes.items()
        if system == PLAIN
    }
    rows = []
    for (case, system), outcome in outcomes.items():
        row = {
            "network": case.network,
            "size": case.size,
            "ranks": case.ranks,
            "tiles": str(case.tiling) if case.tiling else "whole",
            "system": system,
            **outcome.summary(None if system == PLAIN else iterates.get((case.network, case.size))),
        }
        peer = outcomes.get((case, PEER))
        ours = system in LAYOUTS.values()
        if ours and peer is not None and peer.seconds and outcome.seconds:
            row["peer_over_ours"] = median(peer.seconds) / median(outcome.seconds)
        rows.append(row)
    return rows


def verdict(rows: list[dict[str, Any]]) -> list[str]:
    """At how many settings ours is faster, and lighter, in words."""
    pairs: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = (row["network"], row["size"], row["ranks"], row["tiles"])
        pairs.setdefault(key, {})[row["system"]] = row
    lines = []
    for ours in LAYOUTS.values():
        whole = [p for p in pairs.values() if PEER in p and ours in p and "failure" not in p[ours]]
        both = [p for p in whole if "failure" not in p[PEER]]
        if not whole:
            continue
        for name, measure in (
            ("faster", "seconds_per_iteration"),
            ("lighter (peak above set-up)", "memory_above_set_up_bytes"),
        ):
            better = [p for p in both if p[ours][measure] < p[PEER][measure]]
            worse = [p[ours] for p in both if p[ours][measure] >= p[PEER][measure]]
            lines.append(f"{ours} is {name} at {len(better)} of {len(both)} settings")
            lines += [
                f"  not at {row['network']} {row['size']}², {row['tiles']}, {row['ranks']} ranks"
                for row in worse
            ]
        if len(both) < len(whole):
            lines.append(
                f"deepinv.distributed failed at {len(whole) - len(both)} settings more than {ours}"
            )
    return lines


def main(
    network: Annotated[list[str], Option(help="ffdnet (the one that ships), drunet")] = NETWORKS,
    size: Annotated[list[int], Option(help="side of the image in pixels")] = SIZES,
    tiling: Annotated[list[str], Option(help="PATCH/OVERLAP or PATCH/OVERLAPxBATCH")] = TILINGS,
    ranks: Annotated[list[int], Option(help="numbers of processes")] = RANKS,
    layouts: Annotated[list[str], Option(help="of shardinv: replicated, sharded")] = NAMES,
    iterations: Annotated[int, Option(help="timed iterations a run")] = 3,
    warm_up: Annotated[int, Option(help="iterations before those")] = 1,
    repeats: Annotated[int, Option(help="runs of each, each in fresh processes")] = 2,
    timeout: Annotated[float, Option(help="seconds that one run may take")] = 1800.0,
    output: Annotated[Path, Option(help="where the numbers go")] = Path("outputs/benchmark.json"),
    quick: Annotated[bool, Option("--quick", help="a small image, once: does it run?")] = False,
) -> None:
    """Measure shardinv beside deepinv.distributed and undistributed DeepInverse."""
    if quick:
        network, size, tiling, iterations, repeats = ["ffdnet"], [256], ["128/24"], 2, 1
    # A benchmark that is stopped ends its processes and removes its files.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    console = Console()
    # A file or a pipe has no width of its own.
    console = console if console.is_terminal else Console(width=130)
    try:
        tilings = [Tiling.parse(text) for text in tiling]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    unknown = sorted(set(network) - {"ffdnet", "drunet"})
    if unknown:
        raise typer.BadParameter(f"--network is ffdnet or drunet, got {', '.join(unknown)}")
    strange = sorted(set(layouts) - set(LAYOUTS))
    if strange:
        raise typer.BadParameter(f"--layouts is replicated or sharded, got {', '.join(strange)}")
    ours = [system for name, system in LAYOUTS.items() if name in layouts]
    problems = [(n, s) for n in network for s in size]
    cases = [Case(n, s, r, t) for n, s in problems for r in ranks for t in (None, *tilings)]
    runs = list(schedule(cases, ours, repeats, iterations, warm_up))
    outcomes: dict[tuple[Case, str], Outcome] = {}
    rows: list[dict[str, Any]] = []
    options = {
        "iterations": iterations,
        "warm_up": warm_up,
        "repeats": repeats,
        "threads_per_rank": 1,
    }
    told = machine()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, Progress(console=console) as bar:
        folder = Path(name)
        save_networks(folder, network)
        task = bar.add_task("measuring", total=len(runs))
        for number, (case, run) in enumerate(runs):
            where = f"{case.network} {case.size}² {case.tiling or 'whole'}, {case.ranks} ranks"
            bar.update(task, description=f"{run.system}: {where}")
            outcome = outcomes.setdefault((case, run.system), Outcome())
            own = folder / str(number)
            result = run_once(run, own, timeout) if outcome.failure is None else outcome.failure
            if isinstance(result, str):
                outcome.failure = result
            else:
                outcome.add(result, run.iterations)
                outcome.iterate = torch.load(own / "iterate.pt")
            # After each run, so that what a stopped benchmark has measured isn't lost.
            rows = rows_of(outcomes)
            write_json(output, {"machine": told, "options": options, "rows": rows})
            bar.advance(task)
    title = f"plug-and-play with 8 operators, {repeats} × {iterations} iterations"
    console.print(table_of(rows, title))
    for row in rows:
        if "failure" in row:
            where = f"{row['network']} {row['size']}², {row['tiles']}, {row['ranks']} ranks"
            console.print(f"{row['system']} failed at {where}: {row['failure']}", highlight=False)
    for line in verdict(rows):
        console.print(line, highlight=False)
    console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
