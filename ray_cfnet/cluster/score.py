"""The explain job: plan units, let actors read, explain and write them, commit partition by partition."""

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from ray_cfnet import config
from ray_cfnet.cluster.commit import DeltaCommit, ParquetCommit, check_layout, finish_commits
from ray_cfnet.cluster.ingest import READ_ROWS
from ray_cfnet.cluster.ledger import RUNS, FailedUnit, RunFiles, UnitRecord, reconcile, run_id
from ray_cfnet.cluster.manifest import make_manifest
from ray_cfnet.cluster.stopping import NoTimeLeftError, put_on_sigterm
from ray_cfnet.cluster.telemetry import UnitMetrics, log_failure, log_run, log_unit
from ray_cfnet.cluster.units import unit_outcomes
from ray_cfnet.errors import InputError, JobError, RayCfnetError, StoppedError
from ray_cfnet.explain.columns import ROW_STATUS, dictionary_columns, output_schema, rejects_schema, type_metadata
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.explain.explanations import Explanations
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.ahead import Ahead
from ray_cfnet.tables.delta import check_format, prepare_delta
from ray_cfnet.tables.lock import Hold, exclusive
from ray_cfnet.tables.plan import Piece, Source, Unit, check_columns, common_columns, conform, read_ahead, read_unit
from ray_cfnet.tables.storage import Location

OnUnit = Callable[[UnitRecord, int, bool], None]
"""A finished unit, the number of all units, and whether this run did it (or an earlier attempt)."""

_FIRST_PAUSE_S = 1.0

_MOST_STARTS = 5
"""Of one unit in one attempt at a run: losing a node costs each unit on it one."""
_GROUP_ROWS = READ_ROWS // 2
"""Row groups have at least so many rows, but for a file's last: engines skip and share out whole groups, and
many small input files in a unit would make many small ones."""

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
                record = self._explain(unit)
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

    def _count_start(self, unit: Unit) -> None:
        """Raises InputError for a unit whose actors keep dying: Ray would start them again for ever.

        Starts are counted in this attempt at the run alone, beside its stop sign.
        """
        place = self.stop_sign.parent / f"{self.stop_sign.name}-unit-{unit.number}"
        starts = int(place.read_bytes()) if place.exists() else 0
        if starts >= _MOST_STARTS:
            files = ", ".join(sorted({piece.path for piece in unit.pieces}))
            raise InputError(
                f"{self.root}: {files}: unit {unit.number} was begun {starts} times and its actor died each time",
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
            files = ", ".join(sorted({piece.path for piece in unit.pieces}))
            raise InputError(
                f"{self.root}: {files}: {unit.num_rows} rows planned, {record.rows_in} read",
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
        if sum(map(len, self._waiting)) >= _GROUP_ROWS:
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


def explain(source: Source, bundle_place: Location, whole: config.Config, on_unit: OnUnit) -> dict[str, Any]:
    """Explains every row of a table and returns the run's manifest. Needs a Ray session.

    The same table, model and settings are the same run: one that was stopped goes on, and one that is complete is
    not done again (`already_done` in what is returned). Raises InputError when the columns do not fit the bundle,
    JobError when another run is at work on the output, when units failed, rows are missing or too many are rejects.
    """
    bundle = Bundle.load(bundle_place)
    schema = bundle.schema
    desired = bundle.desired_for(whole.explain.desired)
    types = {feature.name: feature.arrow_type for feature in schema.features}
    check_columns(source, {**types, **dict.fromkeys(schema.keys)}, narrower=True)
    columns = common_columns(source)
    check_columns(source.read_as(columns), types)
    written = output_schema(schema, columns, whole.explain.num_options)
    output = Location.of(whole.output.path)
    if output.is_within(source.root) and not source.is_file:
        raise InputError(
            f"{output}: the output would lie among the input's files in {source.root}",
            "choose an --output (output.path) outside of the input's directory",
        )
    words = whole.words if whole.explain.words else None
    Explainer(bundle, desired, whole.explain, words)  # what is wrong with the settings is told before anything starts
    settings = whole.explain.model_dump(mode="json", exclude={"max_reject_fraction", "retries"})
    settings["words"] = words and words.model_dump(mode="json")
    run = RunFiles(output, run_id(source, bundle.id, settings, written))
    check_format(output, whole.output.format)
    with exclusive(output / RUNS, f"run {run.run_id}", patience_s=0) as hold:
        finish_commits(output)
        commit = ParquetCommit(run)
        if whole.output.format == "delta":
            prepare_delta(output, written, source.partitions)
            commit = DeltaCommit(run, written)
        else:
            check_layout(output, source.partitions)
        earlier = run.read_manifest()
        if earlier and earlier["state"] == "complete" and commit.stands(_files(earlier)):
            run.tidy_up()  # what an actor wrote that outlived its driver
            manifest = {**earlier, "already_done": True}
        else:
            job = _Job(source, bundle, bundle_place, whole, run, hold, commit, on_unit)
            worker = ExplainUnit(
                source.root,
                columns,
                bundle_place,
                desired,
                whole.explain,
                words,
                run,
                job.stop_sign,
                max(1, int(whole.cluster.actor_cpus)),
                whole.cluster.actor_gpus > 0,
            )
            try:
                manifest = {**job.do(worker), "already_done": False}
            except InputError as error:  # the run had begun: exit code 1
                raise JobError(str(error)) from error
    _judge(manifest, whole.explain.max_reject_fraction)
    return manifest


def _files(manifest: dict[str, Any]) -> set[str]:
    return {file for unit in manifest["units"] for file in unit["files"]}


def _judge(manifest: dict[str, Any], max_reject_fraction: float) -> None:
    place = f"{manifest['output']}/{RUNS}/{manifest['run_id']}/manifest.json"
    failures = manifest["failures"]
    if failures:
        lines = [failure["error"].splitlines()[0] for failure in failures[:5]]
        more = [f"... and {len(failures) - 5} more"] if len(failures) > 5 else []
        told = "\n  ".join([*lines, *more])
        states = [part["state"] for part in manifest["partitions"].values()]
        committed = states.count("committed")
        raise JobError(
            f"{len(failures)} of {manifest['units_planned']} units failed; {committed} of {len(states)} partitions are "
            f"committed, the others as they were. Mend the cause and run again: what is done stays done\n  {told}\n"
            f"  see {place}"
        )
    share = manifest["rows_rejected"] / max(manifest["rows_in"], 1)
    if share > max_reject_fraction:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest["rejects"].items())
        raise JobError(
            f"{share:.1%} of the rows were rejected ({reasons}), more than explain.max_reject_fraction = "
            f"{max_reject_fraction:g}. Everything is written; look into {manifest['output']}/_rejects"
        )


@dataclass
class _Job:
    """One attempt at a run."""

    source: Source
    bundle: Bundle
    bundle_place: Location
    whole: config.Config
    run: RunFiles
    hold: Hold
    commit: ParquetCommit
    on_unit: OnUnit
    planned: dict[str, list[Unit]] = field(default_factory=lambda: defaultdict(list))
    done: dict[str, list[UnitRecord]] = field(default_factory=lambda: defaultdict(list))
    failed: list[FailedUnit] = field(default_factory=list)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def stop_sign(self) -> Location:
        """Of this attempt alone, and gone with the staging directory at the latest."""
        return self.run.staging / f".stop-{self.token}"

    def do(self, worker: ExplainUnit) -> dict[str, Any]:
        started = time.perf_counter()
        units = self.source.units(self.whole.explain.unit_rows)
        for unit in units:
            self.planned[unit.partition].append(unit)
        earlier = self.run.done_units(units)
        for record in earlier:
            self.done[record.partition].append(record)
            log_unit(self.run.run_id, record, False)
            self.on_unit(record, len(units), False)
        for number, file in enumerate(self.source.unreadable, start=len(units)):
            self.failed.append(FailedUnit(number, file.partition, str(file.error)))
            log_failure(self.run.run_id, self.failed[-1])
        for partition in self.source.partitions:
            self._commit_if_complete(partition)
        finished = {record.number for record in earlier}
        todo = [unit for unit in units if unit.number not in finished]
        unwritable: JobError | None = None
        with put_on_sigterm(self.stop_sign) as stopped, suppress(NoTimeLeftError):
            for unit, outcome in unit_outcomes(todo, worker, self.whole.cluster):
                if isinstance(outcome, JobError):  # what cannot be written here cannot be written anywhere
                    unwritable = outcome
                    break
                if isinstance(outcome, RayCfnetError):
                    self.failed.append(FailedUnit(unit.number, unit.partition, str(outcome)))
                    log_failure(self.run.run_id, self.failed[-1])
                elif outcome is not None:
                    self.done[unit.partition].append(outcome)
                    self._commit_if_complete(unit.partition)
                    log_unit(self.run.run_id, outcome, True)
                    self.on_unit(outcome, len(units), True)
        left = f"{len(units) - sum(map(len, self.done.values()))} of {len(units)} units are left; run again to go on"
        self.stop_sign.delete()
        if unwritable is not None:
            raise JobError(f"{unwritable}\n  {left}")
        if stopped.is_set():
            raise StoppedError(f"stopped by a signal, {left}")
        if sum(map(len, self.done.values())) + len(self.failed) != len(units) + len(self.source.unreadable):
            raise JobError(f"units were left out, {left}")
        self.hold.check()
        try:
            self.commit.end()
        except InputError:
            if not self.failed:  # else Delta refuses new columns for a part of the partitions: the failures are why
                raise
        seconds = time.perf_counter() - started
        manifest = make_manifest(
            self.source,
            self.bundle,
            self.bundle_place,
            self.whole,
            self.run,
            self.done,
            self.failed,
            self.commit.visible,
            seconds,
        )
        self.run.write_manifest(manifest)
        log_run(manifest)
        return manifest

    def _commit_if_complete(self, partition: str) -> None:
        planned, done = self.planned[partition], self.done[partition]
        if len(done) < len(planned) or any(file.partition == partition for file in self.source.unreadable):
            return
        self.hold.check()
        reconcile(partition, planned, done)
        # Without a planned unit its rows are gone, and so must be what an earlier run said about them.
        self.commit.partition(partition, done)
