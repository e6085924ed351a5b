"""What was done: the record of a unit, the manifest of a run, and how they fit into the output directory.

OUTPUT/<partition>/part-00000-<run_id>.parquet   explained rows
OUTPUT/_rejects/<partition>/part-...             rows that could not be scored, with the reason
OUTPUT/_runs/<run_id>/manifest.json              what a run read, wrote and found; written last
OUTPUT/_runs/<run_id>/staging/                   files of partitions that are not complete yet
"""

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from ray_cfnet.errors import JobError
from ray_cfnet.tables.plan import Source, Unit
from ray_cfnet.tables.storage import Location

MANIFEST_VERSION = 1
_PART = re.compile(r"part-\d{5,}-[0-9a-f]{16}\.parquet")
REJECTS = "_rejects"


def run_id(source: Source, model_id: str, settings: dict[str, Any], output: pa.Schema) -> str:
    """The plan's fingerprint: the same inputs, model, settings and columns are the same run."""
    plan = {
        "inputs": [(file.found.path, file.found.size, file.found.modified_ns) for file in source.files],
        "root": str(source.root),
        "model_id": model_id,
        "settings": settings,
        "output": [(column.name, str(column.type)) for column in output],
    }
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class UnitRecord:
    """One finished unit: rows in = rows out + rejected."""

    number: int
    partition: str
    rows_in: int
    rows_out: int
    rejects: dict[str, int]
    status: dict[str, int]
    seconds: float
    files: list[str] = field(default_factory=list)
    """Written files, relative to the output directory."""

    @property
    def rows_rejected(self) -> int:
        return sum(self.rejects.values())


@dataclass(frozen=True)
class RunFiles:
    """The places of one run in the output directory."""

    output: Location
    run_id: str

    @property
    def directory(self) -> Location:
        return self.output / "_runs" / self.run_id

    @property
    def staging(self) -> Location:
        return self.directory / "staging"

    def explained_file(self, unit: Unit) -> str:
        return _join(unit.partition, self._file_name(unit))

    def rejects_file(self, unit: Unit) -> str:
        return _join(REJECTS, unit.partition, self._file_name(unit))

    def _file_name(self, unit: Unit) -> str:
        return f"part-{unit.number:05d}-{self.run_id}.parquet"

    def commit(self, partition: str, units: list[Unit], records: list[UnitRecord]) -> None:
        """Makes a complete partition visible, then removes what an earlier run had put there.

        Raises JobError, leaving the partition as it was, when rows are missing.
        """
        planned = sum(unit.num_rows for unit in units)
        rows_in = sum(record.rows_in for record in records)
        accounted = sum(record.rows_out + record.rows_rejected for record in records)
        if not planned == rows_in == accounted:
            raise JobError(
                f"partition {partition or '(whole table)'}: {planned} rows planned, {rows_in} read, {accounted} "
                "written or rejected; nothing was committed, the partition is as it was"
            )
        files = sorted(file for record in records for file in record.files)
        old = [
            _join(place, found.path)
            for place in (partition, _join(REJECTS, partition))
            for found in (self.output / place).files()
            # Only what a run wrote: other files in the directory are somebody's.
            if _PART.fullmatch(found.path) and _join(place, found.path) not in files
        ]
        for file in files:
            (self.staging / file).move_to(self.output / file)
        for file in old:
            (self.output / file).delete()

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """The last word of a run; the staging directory goes first."""
        self.staging.delete()
        content = json.dumps(manifest, indent=1, sort_keys=True).encode()
        (self.directory / "manifest.json").write_bytes(content)


def totals(records: list[UnitRecord]) -> dict[str, Any]:
    """What the records add up to."""
    rejects: Counter[str] = Counter()
    status: Counter[str] = Counter()
    for record in records:
        rejects.update(record.rejects)
        status.update(record.status)
    return {
        "rows_in": sum(record.rows_in for record in records),
        "rows_out": sum(record.rows_out for record in records),
        "rows_rejected": sum(rejects.values()),
        "rejects": dict(rejects),
        "row_status": dict(status),
    }


def unit_entries(records: list[UnitRecord]) -> list[dict[str, Any]]:
    return [asdict(record) for record in sorted(records, key=lambda record: record.number)]


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)
