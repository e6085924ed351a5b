"""The nightly job: explain what is due, measure where labels are, say how it stands, train only if told to.

    OUTPUT/_status.json                                      how the last night went
    OUTPUT/_runs/<run_id>/evaluation/<partition>.json        what a run's model was measured at there

Partitions are explained one by one, each a run of its own: one that fails leaves the others alone, and a night that
was stopped is continued by the next.
"""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ray_cfnet.cluster.evaluate import evaluate
from ray_cfnet.cluster.ledger import RUNS
from ray_cfnet.cluster.manifest import known_runs
from ray_cfnet.cluster.score import OnUnit, explain
from ray_cfnet.cluster.session import ray_session
from ray_cfnet.cluster.stopping import deaf_to_sigterm, told_on_sigterm
from ray_cfnet.cluster.submission import submission_id
from ray_cfnet.commands import check_job, run_promote, run_train
from ray_cfnet.config import Config
from ray_cfnet.due import (
    Choice,
    Fingerprint,
    Standing,
    drift,
    due_partitions,
    fingerprints,
    is_within,
    newest_first,
    pooled,
    retrain_reasons,
    standings,
)
from ray_cfnet.errors import InputError, RayCfnetError, StoppedError
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.gate import figures
from ray_cfnet.model.store import MODELS, Record, read_history, resolve_bundle
from ray_cfnet.tables.delta import active_files
from ray_cfnet.tables.lock import exclusive, now
from ray_cfnet.tables.plan import Source, open_source
from ray_cfnet.tables.storage import Location

STATUS = "_status.json"
STATUS_VERSION = 1
_LOCK = "_nightly"
_DAY_S = 86_400

Say = Callable[[str], None]


def run_nightly(config: Config, choice: Choice, say: Say, new_counter: Callable[[], OnUnit]) -> dict[str, Any]:
    """One night; returns the status that it also writes. `new_counter` makes a receiver of units per partition.

    Raises what kept the night from going on at all (no bundle, no table, stopped by a signal, another night at
    work); all but the last stand in the status too.
    """
    check_job(config)
    output = Location.of(config.output.path)
    # Ray ends last: a signal leaves little time, and the lock must be free by then.
    with told_on_sigterm(), ExitStack() as stack, exclusive(output / _LOCK, "a nightly run", patience_s=0):
        night = _Night(config, choice, output, say, new_counter, stack)
        try:
            with told_on_sigterm():
                night.do()
        except BaseException as error:
            night.errors.append(_told(error))
            raise
        finally:
            with deaf_to_sigterm():
                status = night.status()
                (output / STATUS).write_bytes(json.dumps(status, indent=1).encode())
    return status


@dataclass
class _Night:
    config: Config
    choice: Choice
    output: Location
    say: Say
    new_counter: Callable[[], OnUnit]
    stack: ExitStack
    started_at: str = field(default_factory=now)
    files: dict[str, Fingerprint] = field(default_factory=dict)
    standing: dict[str, Standing] = field(default_factory=dict)
    due: dict[str, str] = field(default_factory=dict)
    done: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    retrain: dict[str, Any] = field(default_factory=dict)

    def do(self) -> None:
        store = self.output / MODELS
        # Once: a promotion meanwhile does not mix two models in a night.
        self.place = resolve_bundle(store)
        self.bundle, history = Bundle.load(self.place), read_history(store)
        self.model = _age(self.bundle.id, history)
        self.source = open_source(self.config.table.path, in_parts=True)
        self.standing = standings(known_runs(self.output))
        self.files = fingerprints(self.source)
        # Delta keeps files on disk that its newest version no longer has.
        is_delta = self.config.output.format == "delta"
        present = set(active_files(self.output)) if is_delta else {file.path for file in self.output.files()}
        self.due = due_partitions(self.files, self.standing, present, self.choice, self.config)
        tonight = list(self.due)[: self.choice.max_partitions]
        self.say(f"{len(self.due)} partitions are due, {len(tonight)} tonight; model {self.bundle.id}")
        for partition in tonight:
            self._try(self._explain, partition)
        for number, partition in enumerate(self._of_this_model()):
            if partition in tonight or number < self.config.nightly.window:
                self._try(self._evaluate, partition)
        self._judge()
        self._report()
        if self.retrain["due"] and self.config.nightly.retrain:
            self._train(history)

    def _try(self, step: Callable[[str], None], partition: str) -> None:
        """One partition's failure is told and stays its own."""
        try:
            step(partition)
        except StoppedError:
            raise
        except Exception as error:  # a trouble that nobody thought of is no reason to leave out the others
            self.failed.append({"partition": partition, "error": _told(error)})
            self._fault(partition or "the table", error)

    def _fault(self, what: str, error: Exception) -> None:
        self.errors.append(f"{what}: {_told(error)}")
        self.say(f"failed: {self.errors[-1]}")

    def _of_this_model(self) -> list[str]:
        """The partitions that the bundle in use explained, newest first."""
        partitions = newest_first(self.source.partitions, self.config.nightly.partition)
        return [name for name in partitions if name in self.standing and self._run(name).model_id == self.bundle.id]

    def _run(self, partition: str) -> Standing:
        return self.standing[partition]

    def _part(self, partition: str) -> Source:
        return self.source.within(partition) if partition else self.source

    def _connect(self) -> None:
        """Ray for the rest of the night; where there is nothing to do it is not started at all."""
        self.stack.enter_context(ray_session(min_cpus=self.config.cluster.num_workers + 1))

    def _explain(self, partition: str) -> None:
        self.say(f"explaining {partition or 'the table'} ({self.due[partition]})")
        self._connect()
        manifest = explain(self._part(partition), self.place, self.config, self.new_counter())
        self.standing |= standings([manifest])
        names = ("run_id", "already_done", "rows_in", "rows_out", "rows_rejected", "rejects", "row_status")
        why = self.due[partition]
        self.done.append({"partition": partition, "why": why, **{name: manifest[name] for name in names}})

    def _evaluation(self, partition: str) -> Location:
        return self.output / RUNS / self._run(partition).run_id / "evaluation" / f"{partition or 'table'}.json"

    def _evaluate(self, partition: str) -> None:
        """Once a run: labels can only arrive by a change of the files, and then the partition is explained again."""
        place = self._evaluation(partition)
        if place.exists() or self._run(partition).read != self.files[partition]:
            return
        source = self._part(partition)
        record = {"partition": partition, "model_id": self.bundle.id, "at": now(), "labelled": 0, "figures": {}}
        if labelled := _num_labels(source, self.config.table.target):
            self._connect()
            measured = figures(evaluate(source, self.bundle, self.config, None))
            record |= {"labelled": labelled, "figures": measured}
        place.write_bytes(json.dumps(record).encode())

    def _judge(self) -> None:
        settings, partitions = self.config.nightly, self._of_this_model()
        evaluations: list[dict[str, Any]] = []
        for place in map(self._evaluation, partitions):
            if len(evaluations) < settings.window and place.exists():
                found = json.loads(place.read_bytes())
                evaluations += [found] if found["labelled"] else []
        quality, labelled = pooled(evaluations)
        moved = drift([self._run(partition) for partition in partitions], settings.window)
        reasons = retrain_reasons(self.model["age_days"], moved, quality, labelled, self.config)
        self.model |= {"drift": moved, "labelled_rows": labelled, "quality": quality or None}
        self.retrain = {"due": bool(reasons), "reasons": reasons, "done": None}

    def _report(self) -> None:
        """A page for each of tonight's runs, and of late ones that a stopped night has left without.

        A night without pages is a night all the same.
        """
        try:
            from ray_cfnet.report.page import REPORTS, write_report  # its packages are an extra
        except ImportError:
            self.say("no reports: pip install 'ray-cfnet[report]'")
            return
        tonight = {entry["run_id"]: entry for entry in self.done}
        missed = [self._run(name).run_id for name in self._of_this_model()[: self.config.nightly.window]]
        for run_id in dict.fromkeys([*tonight, *missed]):
            if run_id not in tonight and (self.output / REPORTS / f"{run_id}.html").exists():
                continue
            try:
                page = write_report(self.config.output.path, run_id)
            except Exception as error:  # DuckDB's own, a full disk
                self._fault(f"report of run {run_id}", error)
                continue
            if run_id in tonight:
                tonight[run_id]["report"] = page

    def _train(self, history: list[Record]) -> None:
        """On what is there up to `until`: later partitions may still be written."""
        if history and _days_since(history[-1].at) < self.config.nightly.retrain_wait_days:
            self.say(f"no training: the last promotion or refusal was at {history[-1].at}")
            return
        self.say(f"training: {'; '.join(self.retrain['reasons'])}")
        until, key = Choice(until=self.choice.until), self.config.nightly.partition
        try:
            trained = run_train(self.config, lambda _: None, lambda partition: is_within(partition, until, key))
            decided = run_promote(self.config, trained["bundle"], None, None)
        except StoppedError:
            raise
        except Exception as error:
            self._fault("training", error)
            return
        self.retrain["done"] = {name: decided[name] for name in ("to_id", "decision", "failures")}

    def status(self) -> dict[str, Any]:
        rejects, row_status = Counter[str](), Counter[str]()
        for entry in self.done:
            rejects.update(entry["rejects"])
            row_status.update(entry["row_status"])
        sums = {name: sum(entry[name] for entry in self.done) for name in ("rows_in", "rows_out", "rows_rejected")}
        wanted = row_status["ok"] + row_status["no_feasible_cf"]
        tried = {entry["partition"] for entry in [*self.done, *self.failed]}
        return {
            "version": STATUS_VERSION,
            "state": "failed" if self.errors else "ok",
            "started_at": self.started_at,
            "finished_at": now(),
            "submission_id": submission_id(),
            "done": self.done,
            "failed": self.failed,
            "left": [partition for partition in self.due if partition not in tried],
            **sums,
            "rejects": dict(rejects),
            "row_status": dict(row_status),
            "fcf_validity": round(row_status["ok"] / wanted, 6) if wanted else None,
            "model": self.model or None,
            "retrain": self.retrain or None,
            "errors": self.errors,
        }


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, RayCfnetError) else f"{type(error).__name__}: {error}"


def _age(model_id: str, history: list[Record]) -> dict[str, Any]:
    """How long a bundle is in use: a rollback does not make it younger."""
    uses = [record.at for record in history if record.to_id == model_id and record.decision != "refused"]
    first = min(uses, default=now())
    return {"id": model_id, "in_use_since": first, "age_days": round(_days_since(first), 3)}


def _days_since(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds() / _DAY_S


def _num_labels(source: Source, target: str) -> int:
    """How many rows have a label. Reads one column, on this machine."""
    labelled = 0
    for file in source.files:
        if target in file.schema.names:
            place = source.root / file.found.path
            try:
                with pq.ParquetFile(place.path, filesystem=place.fs) as parquet:
                    batches = parquet.iter_batches(columns=[target])
                    labelled += sum(batch.num_rows - batch.column(0).null_count for batch in batches)
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{place}: cannot be read ({error})", "the next night tries it again") from None
    return labelled
