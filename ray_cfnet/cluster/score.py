"""The explain job: plan units, let actors do them (explain_unit.py), commit partition by partition."""

import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ray_cfnet import config
from ray_cfnet.cluster.commit import DeltaCommit, ParquetCommit, check_layout, finish_commits
from ray_cfnet.cluster.explain_unit import ExplainUnit
from ray_cfnet.cluster.ledger import RUNS, FailedUnit, RunFiles, UnitRecord, reconcile, run_id
from ray_cfnet.cluster.manifest import make_manifest
from ray_cfnet.cluster.stopping import NoTimeLeftError, put_on_sigterm
from ray_cfnet.cluster.telemetry import log_failure, log_run, log_unit
from ray_cfnet.cluster.units import unit_outcomes
from ray_cfnet.errors import InputError, JobError, RayCfnetError, StoppedError
from ray_cfnet.explain.columns import output_schema
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.delta import check_format, prepare_delta
from ray_cfnet.tables.drift import check_columns, common_columns
from ray_cfnet.tables.lock import Hold, exclusive
from ray_cfnet.tables.plan import Source, Unit
from ray_cfnet.tables.storage import Location

OnUnit = Callable[[UnitRecord, int, bool], None]
"""A finished unit, the number of all units, and whether this run did it (or an earlier attempt)."""


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
    written = output_schema(schema, columns, whole.explain.num_options, source.partition_columns)
    output = Location.of(whole.output.path)
    if (output.is_within(source.root) and not source.is_file) or source.root.is_within(output):
        raise InputError(
            f"{output}: the output would lie among the input's files in {source.root}",
            "choose an --output (output.path) that neither lies in the input's directory nor contains it",
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
            earlier,
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
