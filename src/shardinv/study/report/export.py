"""The study's data as Parquet and CSV: one line for each thing that was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from shardinv.io import atomic_file
from shardinv.study.analysis.summary import Row
from shardinv.study.measurement import Measurement

Record = dict[str, Any]


def save_data(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write all tables that hold anything, each file whole or not at all."""
    files = []
    for name, table in tables(rows).items():
        for suffix in ("parquet", "csv"):
            file = folder / f"{name}.{suffix}"
            with atomic_file(file) as temporary:
                if suffix == "csv":
                    pyarrow.csv.write_csv(table, temporary)
                else:
                    pyarrow.parquet.write_table(table, temporary)
            files.append(file)
    return files


def tables(rows: Sequence[Row]) -> dict[str, pa.Table]:
    """All tables; times in seconds, sizes in bytes. ``key`` and ``repeat`` tell points apart."""
    kinds: dict[str, Callable[[Measurement], Iterator[Record]]] = {
        "iterations": _iterations,
        "costs": _costs,
        "quality": _quality,
        "memory": _memory,
        "kernels": _kernels,
        "timeline": _timeline,
    }
    found = {"points": [_point(row) for row in rows]}
    for name, records in kinds.items():
        found[name] = [
            {"key": row.point.key, "repeat": m.point.repeat, **record}
            for row in rows
            for m in row.measurements
            for record in records(m)
        ]
    return {name: _table(records) for name, records in found.items() if records}


def _table(records: Sequence[Record]) -> pa.Table:
    # A column that only later lines have is one all the same.
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: [_scalar(record.get(name)) for record in records] for name in names})


def _scalar(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else json.dumps(value)


def _point(row: Row) -> Record:
    settings = row.point.model_dump(mode="json", exclude={"repeat"})
    scaling = row.scaling
    return {
        "key": row.point.key,
        **settings,
        "repeats": len(row.measurements),
        "seconds": row.seconds[0],
        "seconds_low": row.seconds[1],
        "seconds_high": row.seconds[2],
        "speedup": scaling and scaling.speedup,
        "efficiency": scaling and scaling.efficiency,
        "work_normalised_efficiency": scaling and scaling.work_normalised_efficiency,
        "work": row.work,
        "bytes_sent": row.bytes_sent,
        "psnr_db": row.psnr_db,
        "peak_bytes": row.peak_bytes,
        "worker_seconds": row.worker_seconds,
        "joules_per_iteration": row.joules,
        **{f"factor_{f.name.replace(' ', '_')}": f.value for f in row.factors},
        "limit": row.limit or None,
    }


def _iterations(measurement: Measurement) -> Iterator[Record]:
    for iteration, ranks in enumerate(measurement.iterations):
        for rank, own in enumerate(ranks):
            parts = {**own.stages, "waiting": own.waiting, "moving": own.moving}
            for stage, seconds in {**parts, "total": own.total}.items():
                place = {"iteration": iteration, "rank": rank}
                yield {**place, "stage": stage, "seconds": seconds}


def _costs(measurement: Measurement) -> Iterator[Record]:
    for rank, costs in enumerate(measurement.costs):
        for cost in costs:
            yield {"rank": rank, **vars(cost), "bytes_per_second": cost.bandwidth}


def _quality(measurement: Measurement) -> Iterator[Record]:
    for iteration, psnr in enumerate(measurement.psnr_db):
        record: Record = {"iteration": iteration, "psnr_db": psnr}
        if iteration < len(measurement.ssim):
            record["ssim"] = measurement.ssim[iteration]
        for reference, found in measurement.agreement.items():
            if iteration < len(found):
                for name, value in vars(found[iteration]).items():
                    record[f"{reference}_{name}"] = value
        yield record


def _memory(measurement: Measurement) -> Iterator[Record]:
    for rank, memory in enumerate(measurement.memory):
        yield {"rank": rank, **vars(memory)}


def _kernels(measurement: Measurement) -> Iterator[Record]:
    for rank, kernels in enumerate(measurement.kernels):
        record = {"rank": rank, **vars(kernels), "gaps": kernels.gaps}
        yield {name: value for name, value in record.items() if name != "longest"}


def _timeline(measurement: Measurement) -> Iterator[Record]:
    for rank, spans in enumerate(measurement.timeline):
        for span in spans:
            yield {"rank": rank, **vars(span)}
