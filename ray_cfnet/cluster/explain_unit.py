"""What an actor does with a unit: read its rows, explain them, write them under names that depend on the plan alone."""

import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from ray_cfnet import config
from ray_cfnet.cluster.allocation import keep_freed_memory
from ray_cfnet.cluster.ingest import READ_ROWS
from ray_cfnet.cluster.ledger import RunFiles, UnitRecord
from ray_cfnet.cluster.telemetry import UnitMetrics
from ray_cfnet.errors import InputError, RayCfnetError, last_line
from ray_cfnet.explain.columns import ROW_STATUS, dictionary_columns, output_schema, rejects_schema, type_metadata
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.explain.explanations import Explanations
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.ahead import Ahead
from ray_cfnet.tables.drift import conform
from ray_cfnet.tables.plan import Piece, Unit, read_ahead, read_unit
from ray_cfnet.tables.storage import Location

_FIRST_PAUSE_S = 1.0

_MOST_STARTS = 5
"""Of one unit in one attempt at a run: losing a node costs each unit on it one."""
_GROUP_ROWS = READ_ROWS // 2
"""Row groups have at least so many rows, but for a file's last: engines skip and share out whole groups, and
many small input files in a unit would make many small ones."""
_GROUP_BYTES = 128 * 1024**2
"""Or so many bytes: wide rows must not wait in memory for others."""

Batches = tuple[Piece, int, pa.RecordBatch]
Reading = Generator[Batches, None, None] | Ahead[Batches]


@dataclass
class ExplainUnit:
    """Reads a unit, explains it and writes its files under names that depend on the plan alone."""

    root: Location
    columns: pa.Schema
    bundle_place: Location
    desired: int | None
    settings: config.Explain
    words: config.Words | None
    run: RunFiles
    stop_sign: Location
    """When it is there, no further unit is begun."""
    threads: int
    use_gpu: bool

    @cached_property
    def explainer(self) -> Explainer:
        """Loaded and verified once in each actor."""
        torch.set_num_threads(self.threads)  # actors are the parallelism
        keep_freed_memory()
        bundle = Bundle.load(self.bundle_place)
        if self.use_gpu:
            bundle.net.to("cuda")
        bundle.schema = bundle.schema.held_by(self.columns)
        return Explainer(bundle, self.desired, self.settings, self.words)

    @cached_property
    def metrics(self) -> UnitMetrics:
        return UnitMetrics(self.run.run_id)

    def expect(self, unit: Unit) -> None:
        """Lets the bytes of a later unit come from the disk while this one computes."""
        read_ahead(self.root, unit)

    def __call__(self, unit: Unit) -> UnitRecord | None:
        """None: not begun, because the run is to stop."""
        started, pause_s = time.perf_counter(), _FIRST_PAUSE_S
        for attempt in range(self.settings.retries + 1):
            try:
                if self.stop_sign.exists():
                    return None
                if attempt == 0:
                    self._count_start(unit)
                record = self._explained(unit)
                record.retries, record.seconds = attempt, time.perf_counter() - started
                record.peak_rss_mb = _peak_rss_mb()
                self.run.write_record(record)
                self.metrics.add(record)
                return record
            except RayCfnetError:
                # Storage has bad moments. Names depend on the plan alone, so a repetition leaves nothing behind.
                if attempt == self.settings.retries:
                    raise
                time.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("the last attempt returns or raises")

    def _explained(self, unit: Unit) -> UnitRecord:
        """Raises our errors alone: damage that reading lets pass may turn up anywhere, and concerns this unit."""
        try:
            return self._explain(unit)
        except RayCfnetError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.root}: {_files_of(unit)}: cannot be explained ({type(error).__name__}: {last_line(error)})",
                "write the file again, or remove it; if others fail in the same way, report it",
            ) from error

    def _count_start(self, unit: Unit) -> None:
        """Raises InputError for a unit whose actors keep dying: Ray would start them again for ever.

        Starts are counted in this attempt at the run alone, beside its stop sign.
        """
        place = self.stop_sign.parent / f"{self.stop_sign.name}-unit-{unit.number}"
        starts = int(place.read_bytes()) if place.exists() else 0
        if starts >= _MOST_STARTS:
            raise InputError(
                f"{self.root}: {_files_of(unit)}: unit {unit.number} was begun {starts} times and its actor died "
                "each time",
                "look for memory limits and lost nodes in Ray's logs; a smaller explain.unit_rows or more memory helps",
            )
        place.write_bytes(str(starts + 1).encode())

    def _explain(self, unit: Unit) -> UnitRecord:
        schema = self.explainer.schema
        dictionaries = [feature.name for feature in schema.categorical]
        record = UnitRecord(unit.number, unit.partition)
        written = output_schema(schema, self.columns, self.settings.num_options)
        explained = _Part(self.run, self.run.explained_file(unit), written, dictionary_columns(schema, written))
        rejected = _Part(self.run, self.run.rejects_file(unit), rejects_schema(self.columns), True)
        with explained, rejected, closing(self._batches(unit, dictionaries)) as batches:
            for _, _, batch in batches:
                table = pa.Table.from_batches([conform(batch, self.columns, dictionaries)])
                good, bad, found = self.explainer.explain_table(table, self.run.run_id)
                explained.write(good)
                rejected.write(bad)
                record.rows_in += batch.num_rows
                self._count(record, good, bad, found)
        if record.rows_in != unit.num_rows:
            raise InputError(
                f"{self.root}: {_files_of(unit)}: {unit.num_rows} rows planned, {record.rows_in} read",
                "the file changed meanwhile; run again",
            )
        record.files = [part.name for part in (explained, rejected) if part.num_rows]
        return record

    def _batches(self, unit: Unit, dictionaries: list[str]) -> Reading:
        """The unit's rows, decoded in a second thread where that helps.

        Local files come from the kernel's read-ahead, and an actor of one CPU would take another's by decoding beside
        its computing. From S3 a batch is waited for.
        """
        batches = read_unit(self.root, unit, self.columns.names, dictionaries, READ_ROWS)
        return batches if self.root.is_local and self.threads == 1 else Ahead(batches)

    def _count(self, record: UnitRecord, good: pa.Table, bad: pa.Table, found: Explanations) -> None:
        record.rows_out += len(good)
        reasons = bad.column("reject_reason").value_counts().to_pylist()
        record.count("rejects", {reason["values"]: reason["counts"] for reason in reasons})
        by_status = np.bincount(found.status, minlength=len(ROW_STATUS)).tolist()
        record.count("status", dict(zip(ROW_STATUS, by_status, strict=True)))
        classes = list(map(str, self.explainer.schema.target.classes))
        predicted = np.bincount(found.predicted, minlength=len(classes)).tolist()
        record.count("predicted", dict(zip(classes, predicted, strict=True)))
        record.cf_valid += int(found.cf_valid.sum())
        record.fcf_distance += pc.sum(good.column("fcf_distance")).as_py() or 0.0
        told, schema = found.has_fcf, self.explainer.schema
        for column, number in enumerate(schema.continuous):
            changed = found.rows.values[:, column] != found.fcf.values[:, column]
            record.count("changed", {number.name: int((changed & told).sum())})
        for column, category in enumerate(schema.categorical):
            changed = found.rows.codes[:, column] != found.fcf.codes[:, column]
            record.count("changed", {category.name: int((changed & told).sum())})


def _files_of(unit: Unit) -> str:
    return ", ".join(sorted({piece.path for piece in unit.pieces}))


def _peak_rss_mb() -> int:
    """Not from getrusage: there a process starts with the peak of the one that started it."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) // 1024 if status.exists() else 0


class _Part(ExitStack):
    """A Parquet file in the staging directory that appears only if it gets rows and no error."""

    def __init__(self, run: RunFiles, name: str, declared: pa.Schema, dictionaries: list[str] | bool) -> None:
        super().__init__()
        self.name = name
        self.num_rows = 0
        self._place = run.staging / name
        self._declared = declared
        self._dictionaries = dictionaries
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        if len(table) == 0:
            return
        self.num_rows += len(table)
        self._waiting.append(table)
        if sum(map(len, self._waiting)) >= _GROUP_ROWS or sum(part.nbytes for part in self._waiting) >= _GROUP_BYTES:
            self._write_group()

    def __exit__(self, kind: Any, *details: Any) -> bool | None:
        if kind is None and self._waiting:
            with self:  # closes the file also when this last write fails
                self._write_group()
            return False
        return super().__exit__(kind, *details)

    def _write_group(self) -> None:
        """What waits becomes a row group; with several dictionaries in it, the writer would give them up."""
        table, self._waiting = pa.concat_tables(self._waiting), []
        if table.column(0).num_chunks > 1:
            table = table.unify_dictionaries()
        if self._writer is None:
            sink = self.enter_context(self._place.atomic_sink())
            self._writer = self.enter_context(
                pq.ParquetWriter(
                    sink, table.schema, compression="zstd", store_schema=False, use_dictionary=self._dictionaries
                )
            )
            self._writer.add_key_value_metadata(type_metadata(self._declared))
        self._writer.write_table(table)
