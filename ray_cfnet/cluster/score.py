"""The explain job: plan units, let actors read, explain and write them, commit partition by partition."""

import platform
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ray_cfnet import config
from ray_cfnet.cluster.ingest import READ_ROWS
from ray_cfnet.cluster.ledger import MANIFEST_VERSION, RunFiles, UnitRecord, run_id, totals, unit_entries
from ray_cfnet.cluster.units import map_units
from ray_cfnet.errors import InputError
from ray_cfnet.explain.columns import ROW_STATUS, output_schema, rejects_schema, type_metadata
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.plan import Source, Unit, check_columns, check_same_columns, read_unit
from ray_cfnet.tables.storage import Location


@dataclass
class ExplainUnit:
    """Reads a unit, explains it and writes its files under names that depend on the plan alone."""

    root: Location
    columns: pa.Schema
    bundle_place: Location
    desired: int | None
    run: RunFiles

    @cached_property
    def explainer(self) -> Explainer:
        """Loaded and verified once in each actor."""
        torch.set_num_threads(1)  # actors are the parallelism
        return Explainer(Bundle.load(self.bundle_place), self.desired)

    def __call__(self, unit: Unit) -> UnitRecord:
        started = time.perf_counter()
        schema = self.explainer.schema
        record = UnitRecord(unit.number, unit.partition, 0, 0, {}, {}, 0.0)
        explained = _Part(self.run, self.run.explained_file(unit), output_schema(schema, self.columns))
        rejected = _Part(self.run, self.run.rejects_file(unit), rejects_schema(self.columns))
        dictionaries = [feature.name for feature in schema.categorical]
        with explained, rejected:
            for _, _, batch in read_unit(self.root, unit, self.columns.names, dictionaries, READ_ROWS):
                good, bad, found = self.explainer.explain_table(pa.Table.from_batches([batch]), self.run.run_id)
                explained.write(good)
                rejected.write(bad)
                record.rows_in += batch.num_rows
                record.rows_out += len(good)
                _count(record.rejects, bad.column("reject_reason"))
                for index, count in enumerate(np.bincount(found.status, minlength=len(ROW_STATUS))):
                    record.status[ROW_STATUS[index]] = record.status.get(ROW_STATUS[index], 0) + int(count)
        record.files = [part.name for part in (explained, rejected) if part.num_rows]
        record.seconds = time.perf_counter() - started
        return record


def _count(counts: dict[str, int], column: pa.ChunkedArray) -> None:
    for item in column.value_counts().to_pylist():
        counts[item["values"]] = counts.get(item["values"], 0) + item["counts"]


class _Part(ExitStack):
    """A Parquet file in the staging directory that appears only if it gets rows and no error."""

    def __init__(self, run: RunFiles, name: str, declared: pa.Schema) -> None:
        super().__init__()
        self.name = name
        self.num_rows = 0
        self._place = run.staging / name
        self._declared = declared
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        if len(table) == 0:
            return
        if self._writer is None:
            sink = self.enter_context(self._place.atomic_sink())
            self._writer = self.enter_context(
                pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False)
            )
            self._writer.add_key_value_metadata(type_metadata(self._declared))
        self._writer.write_table(table)
        self.num_rows += len(table)


def explain(
    source: Source,
    bundle_place: Location,
    whole: config.Config,
    on_unit: Callable[[UnitRecord, int], None],
) -> dict[str, Any]:
    """Explains every row of a table and returns the run's manifest. Needs a Ray session.

    `on_unit` gets each finished unit and the number of all units. Raises InputError when the columns do not
    fit the bundle, JobError when rows are missing at the end.
    """
    started = time.perf_counter()
    bundle = Bundle.load(bundle_place)
    schema = bundle.schema
    desired = bundle.desired_for(whole.explain.desired)
    check_columns(source, {**{f.name: f.arrow_type for f in schema.features}, **dict.fromkeys(schema.keys)})
    check_same_columns(source)
    written = output_schema(schema, source.schema)
    output = Location.of(whole.output.path)
    if output.is_within(source.root) and not source.is_file:
        raise InputError(
            f"{output}: the output would lie among the input's files in {source.root}",
            "choose an --output (output.path) outside of the input's directory",
        )
    run = RunFiles(output, run_id(source, bundle.id, whole.explain.model_dump(mode="json"), written))
    units = source.units(whole.explain.unit_rows)
    waiting: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        waiting[unit.partition].append(unit)
    done: dict[str, list[UnitRecord]] = defaultdict(list)
    run.staging.delete()  # of an attempt that was killed
    worker = ExplainUnit(source.root, source.schema, bundle_place, desired, run)
    for partition in source.partitions:
        if not waiting[partition]:  # its rows are gone, and so must be what an earlier run said about them
            run.commit(partition, [], [])
    for record in map_units(units, worker, whole.cluster.num_actors):
        done[record.partition].append(record)
        if len(done[record.partition]) == len(waiting[record.partition]):
            run.commit(record.partition, waiting[record.partition], done[record.partition])
        on_unit(record, len(units))
    manifest = _manifest(source, bundle, run, done, time.perf_counter() - started)
    run.write_manifest(manifest)
    return manifest


def _manifest(
    source: Source, bundle: Bundle, run: RunFiles, done: dict[str, list[UnitRecord]], seconds: float
) -> dict[str, Any]:
    records = [record for partition in done.values() for record in partition]
    summary = totals(records)
    return {
        "version": MANIFEST_VERSION,
        "run_id": run.run_id,
        "model_id": bundle.id,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "input": str(source.root),
        "inputs": [asdict(file.found) for file in source.files],
        "output": str(run.output),
        **summary,
        "partitions": {name: totals(parts) for name, parts in sorted(done.items())},
        "units": unit_entries(records),
        "seconds": round(seconds, 3),
        "rows_per_s": round(summary["rows_in"] / seconds, 1),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("ray-cfnet", "ray", "torch", "pyarrow")},
        },
    }
