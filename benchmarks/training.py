"""A training step of an unrolled solver: shardinv beside ``deepinv.distributed``, in one run.

``python -m benchmarks.training``. Each measurement runs in fresh processes (``training_rank``), in
turn for the systems that are compared. ``README.md`` here says what the columns mean.
"""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from typer import Option

from benchmarks.case import OURS, PEER, PLAIN, SHARDED, Tiling
from benchmarks.processes import machine, run_ranks
from shardinv.io import write_json
from shardinv.problems import load_denoiser

CHECKPOINTS = {"never": "kept", "always": "recomputed"}


def gradient_error(folder: Path, ranks: int, reference: dict[str, torch.Tensor]) -> float | None:
    """The largest relative error over parameters and ranks; None where names differ."""
    worst = 0.0
    for rank in range(ranks):
        found = torch.load(folder / f"gradients{rank}.pt")
        if found.keys() != reference.keys():
            return None
        worst = max(
            worst,
            *(
                float((found[name] - wanted).norm() / wanted.norm())
                for name, wanted in reference.items()
            ),
        )
    return worst


def show(rows: list[dict[str, Any]], title: str) -> Table:
    """A line for each system and way of keeping activations."""
    table = Table(title=title)
    for name in ("system", "activations"):
        table.add_column(name, no_wrap=True)
    for name in ("s/step", "min", "max", "peer/ours", "MB on wire", "above MB", "gradient error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if "failure" in row:
            table.add_row(row["system"], row["activations"], "[red]failed[/]")
            continue
        ratio, error = row.get("peer_over_ours"), row["gradient_error"]
        table.add_row(
            row["system"],
            row["activations"],
            *(f"{row[f'seconds_{what}']:.3f}" for what in ("per_step", "min", "max")),
            "" if ratio is None else f"{ratio:.2f}",
            f"{row['loopback_bytes_per_step'] / 1e6:.2f}",
            f"{row['memory_above_set_up_bytes'] / 1e6:.0f}",
            "" if error is None else f"{error:.1e}",
        )
    return table


def main(
    size: Annotated[int, Option(help="side of the image in pixels")] = 256,
    ranks: Annotated[int, Option(help="number of processes")] = 2,
    tiling: Annotated[str, Option(help="PATCH/OVERLAP or PATCH/OVERLAPxBATCH")] = "128/24",
    iterations: Annotated[int, Option(help="of the unrolled solver")] = 3,
    operators: Annotated[int, Option(help="number of frames")] = 4,
    steps: Annotated[int, Option(help="timed training steps a run")] = 3,
    warm_up: Annotated[int, Option(help="steps before those")] = 1,
    repeats: Annotated[int, Option(help="runs of each, each in fresh processes")] = 2,
    timeout: Annotated[float, Option(help="seconds that one run may take")] = 1800.0,
    output: Annotated[Path, Option(help="where the numbers go")] = Path("outputs/training.json"),
    quick: Annotated[bool, Option("--quick", help="small and once: does it run?")] = False,
) -> None:
    """Measure training with shardinv, deepinv.distributed and undistributed DeepInverse."""
    if quick:
        size, tiling, iterations, steps, repeats = 96, "48/24", 2, 1, 1
    console = Console()
    console = console if console.is_terminal else Console(width=130)
    run = {
        "size": size,
        "ranks": ranks,
        "tiling": Tiling.parse(tiling),
        "iterations": iterations,
        "operators": operators,
        "steps": steps,
        "warm_up": warm_up,
    }
    wanted = [(PLAIN, "never")]
    wanted += [(s, checkpoint) for checkpoint in CHECKPOINTS for s in (PEER, OURS, SHARDED)]
    found: dict[tuple[str, str], list[list[dict[str, Any]]]] = {key: [] for key in wanted}
    failures: dict[tuple[str, str], str] = {}
    errors: dict[tuple[str, str], float | None] = {}
    told = machine()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, Progress(console=console) as bar:
        folder = Path(name)
        torch.save(load_denoiser("ffdnet").requires_grad_(True), folder / "network.pt")
        order = [k for n in range(repeats) for k in (wanted if n % 2 == 0 else reversed(wanted))]
        task = bar.add_task("measuring", total=len(order))
        for number, (system, checkpoint) in enumerate(order):
            bar.update(task, description=f"{system}, {CHECKPOINTS[checkpoint]}")
            own = folder / str(number)
            own.mkdir()
            settings = {**run, "system": system, "checkpoint": checkpoint}
            (own / "run.pickle").write_bytes(pickle.dumps(settings))
            count = 1 if system == PLAIN else ranks
            result = run_ranks("benchmarks.training_rank", own, count, timeout)
            if isinstance(result, str):
                failures[system, checkpoint] = result
            else:
                found[system, checkpoint].append(result)
                if system == PLAIN:
                    reference = torch.load(own / "gradients0.pt")
                elif number < len(wanted):
                    errors[system, checkpoint] = gradient_error(own, count, reference)
            bar.advance(task)
    rows = []
    for system, checkpoint in wanted:
        row: dict[str, Any] = {"system": system, "activations": CHECKPOINTS[checkpoint]}
        runs = found[system, checkpoint]
        if (system, checkpoint) in failures:
            rows.append({**row, "failure": failures[system, checkpoint]})
            continue
        seconds = [max(times) for r in runs for times in zip(*(rank["seconds"] for rank in r))]
        rows.append(
            {
                **row,
                "seconds_per_step": median(seconds),
                "seconds_min": min(seconds),
                "seconds_max": max(seconds),
                "seconds": seconds,
                "loopback_bytes_per_step": min(
                    r[0]["loopback_bytes"] / steps / len(r) for r in runs
                ),
                "memory_above_set_up_bytes": max(
                    rank["memory_peak_bytes"] - rank["memory_before_bytes"]
                    for r in runs
                    for rank in r
                ),
                "gradient_error": errors.get((system, checkpoint)),
            }
        )
    peers = {row["activations"]: row for row in rows if row["system"] == PEER}
    for row in rows:
        peer = peers.get(row["activations"], {})
        if row["system"] in (OURS, SHARDED) and {*row} & {*peer} >= {"seconds_per_step"}:
            row["peer_over_ours"] = peer["seconds_per_step"] / row["seconds_per_step"]
    options = {**run, "tiling": tiling, "repeats": repeats, "threads_per_rank": 1}
    write_json(output, {"machine": told, "options": options, "rows": rows})
    unit = f"{size}², FFDNet, {operators} frames, {iterations} iterations, {tiling}, {ranks} ranks"
    console.print(show(rows, f"a training step: {unit}"))
    for (system, checkpoint), reason in failures.items():
        console.print(f"{system}, {CHECKPOINTS[checkpoint]}: {reason}", highlight=False)
    console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
