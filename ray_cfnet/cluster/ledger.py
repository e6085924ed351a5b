"""What was done: the record of a unit, the manifest of a run, and where they stand in the output directory.

OUTPUT/<partition>/part-00000-<run_id>.parquet   explained rows
OUTPUT/_rejects/<partition>/part-...             rows that could not be scored, with the reason
OUTPUT/_runs/<run_id>/manifest.json              what a run read, wrote and found; written last
OUTPUT/_runs/<run_id>/staging/                   files of partitions that are not complete yet
OUTPUT/_runs/<run_id>/units/00000.json           a finished unit; gone when the manifest is written
OUTPUT/_runs/<run_id>/commit.json                a commit under way (commit.py)
"""

import hashlib
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables.plan import Source, Unit
from ray_cfnet.tables.storage import Location

MANIFEST_VERSION = 2
REJECTS = "_rejects"
RUNS = "_runs"
_MANIFEST = "manifest.json"
_READ_THREADS = 16
_MOST_CHANGED = 10


def run_id(source: Source, model_id: str, settings: dict[str, Any], output: pa.Schema) -> str:
    """The plan's fingerprint: the same inputs, model, settings and columns are the same run."""
    plan = {
        "inputs": [(file.found.path, file.found.size, file.found.modified_ns) for file in source.files],
        "root": str(source.root),
        "model_id": model_id,
        "settings": settings,
        "output": [(column.name, str(column.type)) for column in output],
    }
    if source.unreadable:  # units have other numbers without them: no record may be taken for another unit's
        plan["unreadable"] = [(bad.found.path, bad.found.size, bad.found.modified_ns) for bad in source.unreadable]
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class UnitRecord:
    """One finished unit: rows in = rows out + rejected. Sums, so that units merge by addition."""

    number: int
    partition: str
    rows_in: int = 0
    rows_out: int = 0
    rejects: dict[str, int] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    predicted: dict[str, int] = field(default_factory=dict)
    """Rows by predicted class."""
    cf_valid: int = 0
    fcf_distance: float = 0.0
    changed: dict[str, int] = field(default_factory=dict)
    """Rows whose feasible counterfactual changes the feature."""
    seconds: float = 0.0
    retries: int = 0
    peak_rss_mb: int = 0
    """Of the actor, since it started."""
    files: list[str] = field(default_factory=list)
    """Written files, relative to the output directory."""

    @property
    def rows_rejected(self) -> int:
        return sum(self.rejects.values())

    def count(self, name: str, counts: dict[str, int]) -> None:
        """Adds to one of the counters."""
        counter = getattr(self, name)
        for key, number in counts.items():
            if number:
                counter[key] = counter.get(key, 0) + number


@dataclass(frozen=True)
class FailedUnit:
    """A unit that could not be done, and what to tell about it."""

    number: int
    partition: str
    error: str


@dataclass(frozen=True)
class RunFiles:
    """The places of one run in the output directory."""

    output: Location
    run_id: str

    @property
    def directory(self) -> Location:
        return self.output / RUNS / self.run_id

    @property
    def staging(self) -> Location:
        return self.directory / "staging"

    @property
    def _records(self) -> Location:
        return self.directory / "units"

    def explained_file(self, unit: Unit) -> str:
        return join(unit.partition, self._file_name(unit))

    def rejects_file(self, unit: Unit) -> str:
        return join(REJECTS, unit.partition, self._file_name(unit))

    def _names(self, unit: Unit) -> set[str]:
        """All that a unit can write: a record that names anything else is not ours."""
        return {self.explained_file(unit), self.rejects_file(unit)}

    def _file_name(self, unit: Unit) -> str:
        return f"part-{unit.number:05d}-{self.run_id}.parquet"

    def write_record(self, record: UnitRecord) -> None:
        """Says that a unit is done. Its files must be complete."""
        (self._records / f"{record.number:05d}.json").write_bytes(json.dumps(asdict(record)).encode())

    def done_units(self, units: list[Unit]) -> list[UnitRecord]:
        """Units that an earlier attempt finished: there is a record, and every file that it names."""
        places = [self._records / file.path for file in self._records.files()]
        if not places:
            return []
        with ThreadPoolExecutor(_READ_THREADS) as threads:
            records = list(threads.map(_read_record, places))
        there = self.present_files()
        planned = {unit.number: unit for unit in units}
        return [
            record
            for record in records
            if record is not None
            and record.number in planned
            and record.rows_in == planned[record.number].num_rows
            and there.issuperset(record.files)
            and self._names(planned[record.number]).issuperset(record.files)
        ]

    def present_files(self) -> set[str]:
        """This run's files, staged or in place."""
        return self._files_below(self.staging) | self.files_in_place()

    def files_in_place(self) -> set[str]:
        """This run's files where readers find them."""
        return self._files_below(self.output)

    def _files_below(self, place: Location) -> set[str]:
        mine = f"-{self.run_id}.parquet"
        found = {file.path for file in place.files() if file.path.endswith(mine)}
        return found | {join(REJECTS, file.path) for file in (place / REJECTS).files() if file.path.endswith(mine)}

    def read_manifest(self) -> dict[str, Any] | None:
        place = self.directory / _MANIFEST
        return read_manifest(place) if place.exists() else None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """The last word of a run. What a repeated run would need goes only when all is done."""
        (self.directory / _MANIFEST).write_bytes(json.dumps(manifest, indent=1).encode())
        if manifest["state"] == "complete":
            self.tidy_up()

    def tidy_up(self) -> None:
        """Removes what only an unfinished run needs."""
        for place in (self.staging, self._records):
            place.delete()


def _read_record(place: Location) -> UnitRecord | None:
    try:
        return UnitRecord(**json.loads(place.read_bytes()))
    except (ValueError, TypeError):  # of another version: the unit is done again
        return None


def read_manifest(place: Location) -> dict[str, Any]:
    """Raises InputError for a file that is no manifest."""
    try:
        manifest = json.loads(place.read_bytes())
        return dict(manifest) if manifest["version"] else {}
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{place}: not a manifest of ray-cfnet", "remove the file, or restore it") from None


def reconcile(partition: str, units: list[Unit], records: list[UnitRecord]) -> None:
    """Raises JobError unless every planned row was read and is either explained or rejected."""
    planned = {unit.number: unit.num_rows for unit in units}
    read = {record.number: record.rows_in for record in records}
    accounted = {record.number: record.rows_out + record.rows_rejected for record in records}
    if not planned == read == accounted or len(records) != len(units):
        sums = [sum(rows.values()) for rows in (planned, read, accounted)]
        raise JobError(
            f"partition {partition or '(whole table)'}: {sums[0]} rows planned, {sums[1]} read, {sums[2]} written or "
            "rejected, unit by unit not the same; nothing was committed, the partition is as it was"
        )


def totals(records: list[UnitRecord]) -> dict[str, Any]:
    """What the records add up to."""
    rejects: Counter[str] = Counter()
    status: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for record in records:
        rejects.update(record.rejects)
        status.update(record.status)
        predicted.update(record.predicted)
        changed.update(record.changed)
    rows_out, told = sum(record.rows_out for record in records), status["ok"]
    explained = rows_out - status["not_selected"]
    wanted = explained - status["already_desired"]
    distance = sum(record.fcf_distance for record in sorted(records, key=lambda record: record.number))
    return {
        "rows_in": sum(record.rows_in for record in records),
        "rows_out": rows_out,
        "rows_rejected": sum(rejects.values()),
        "rejects": dict(rejects),
        "row_status": dict(status),
        "row_status_share": {name: _share(count, rows_out) for name, count in status.items()},
        "predicted": dict(predicted),
        "cf_validity": _share(sum(record.cf_valid for record in records), explained),
        "fcf_validity": _share(told, wanted),
        "mean_fcf_distance": _share(distance, told),
        "changed_features": {name: _share(count, told) for name, count in changed.most_common(_MOST_CHANGED)},
        "seconds_in_actors": round(sum(record.seconds for record in records), 3),
    }


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def unit_entries(records: list[UnitRecord]) -> list[dict[str, Any]]:
    return [asdict(record) for record in sorted(records, key=lambda record: record.number)]


def join(*parts: str) -> str:
    """A path of the parts that are not empty."""
    return "/".join(part for part in parts if part)
