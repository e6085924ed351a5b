"""The committed state of an output as a Delta table, through the optional package `deltalake`.

OUTPUT/<partition>/part-00000-<run_id>.parquet   rows, written by the job; they count once a commit names them
OUTPUT/_delta_log/                               the commits: which files make up which version of the table

One commit replaces all rows of the partitions that a run covers. Files of older versions stay where they are,
for time travel, until somebody vacuums the table. Directories that start with `_`, such as _rejects and _runs,
are none of Delta's business; its vacuum leaves them alone too.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables.delta_plan import ANOTHER_PATH, DeltaPlan, Values, check_features, plan_delta, replaces_table
from ray_cfnet.tables.storage import FoundFile, Location

_PART = re.compile(r"(.*/)?part-\d{5,}-[0-9a-f]{16}\.parquet")
_LOG_FILE = re.compile(r"\d{20}\.(json|checkpoint\..*)")


@dataclass(frozen=True)
class DeltaFile:
    """A Parquet file of the job that a commit makes part of the table."""

    path: str
    """Relative to the output directory."""
    partition: str
    size: int
    num_rows: int


def is_delta(output: Location) -> bool:
    """Whether there is a Delta table. Needs no package."""
    return any(_LOG_FILE.fullmatch(file.path) for file in (output / "_delta_log").files())


def check_format(output: Location, format: str) -> None:  # noqa: A002 - the name it has in the configuration
    """Raises InputError when the output holds a table of the other format (`delta` or `parquet`).

    A plain reader would count the rows of all versions of a Delta table, and a Delta reader none of a plain one's.
    """
    if is_delta(output):
        if format != "delta":
            raise InputError(f"{output}: holds a Delta table", f"set output.format to delta, or {ANOTHER_PATH}")
    elif format == "delta":
        plain = next((file.path for file in output.files() if _PART.fullmatch(file.path)), None)
        if plain:
            raise InputError(
                f"{output}: holds plain Parquet files of an earlier run, such as {plain}, and no Delta table",
                f"{ANOTHER_PATH}, or output.format to parquet",
            )


def prepare_delta(output: Location, columns: pa.Schema, partitions: list[str]) -> None:
    """Everything that can be known to fail before hours of work: call it before the first file is written.

    Creates the table, without rows, when there is none: files of a run that dies before its commit would make
    the output look like a plain one. Raises InputError.
    """
    check_format(output, "delta")
    _deltalake()
    plan = plan_delta(output, columns, partitions)
    if not is_delta(output):
        _replace_table(output, plan, [], "ray-cfnet: empty table", None)
    else:
        table = _open(output)
        replaces_table(output, table, _active_values(table), plan)


def commit_delta(
    output: Location, columns: pa.Schema, partitions: list[str], files: list[DeltaFile], run_id: str
) -> int:
    """Replaces all rows of `partitions` by those of `files`, in one commit; returns the table's version.

    `columns` are those inside the files; the partition columns come from the paths, as strings. A partition
    without files loses its rows. When exactly these files are there already nothing is written, and the version
    is that of the run's commit. Columns may change when the partitions cover all rows; comments on them are written
    when the table is defined, and are its owner's from then on. The caller holds the lock on the output. Raises
    InputError, with nothing changed, and JobError when the commit fails.
    """
    _deltalake()
    plan = plan_delta(output, columns, partitions)
    strangers = sorted({file.partition for file in files} - set(partitions))
    if strangers:
        raise ValueError(f"files of {strangers}, which are not among the partitions to replace")
    note = f"ray-cfnet run {run_id}"
    if not is_delta(output):
        return _replace_table(output, plan, files, note, None)
    table = _open(output)
    if replaces_table(output, table, _active_values(table), plan):
        return _replace_table(output, plan, files, note, table)
    replaced = plan.replaced_values
    old = {file.path: file for file in _active(table) if file.values in replaced}
    new = {file.path: file for file in files}
    if {(file.path, file.size) for file in old.values()} == {(file.path, file.size) for file in files}:
        return _version_with(output, table, note)
    # A file that was written again under its name is added again; the later entry counts.
    gone = [file for path, file in old.items() if path not in new]
    return _replace_partitions(output, table, plan, files, gone, note)


def active_files(output: Location) -> list[str]:
    """The files of the newest version, relative to the output; none where there is no Delta table."""
    return sorted(file.path for file in _active(_open(output))) if is_delta(output) else []


def input_files(table: Location, there: list[FoundFile]) -> list[FoundFile]:
    """Of all files below an input table those that have its rows: older versions of a Delta table lie there too.

    Raises InputError for a Delta table that is not all there, or that plain files do not tell.
    """
    if not is_delta(table):
        return there
    opened = _open(table)
    check_features(table, opened)
    current = {file.path for file in _active(opened)}
    missing = sorted(current - {file.path for file in there})
    if missing:
        raise InputError(
            f"{table}: the Delta table names {missing[0]}, which is not there", "restore the file, or repair the table"
        )
    return [file for file in there if file.path in current]


@dataclass(frozen=True)
class _ActiveFile:
    path: str
    size: int
    values: Values


def _active(table: Any) -> list[_ActiveFile]:
    return [
        # The log has URL-encoded paths.
        _ActiveFile(unquote(row["path"]), row["size_bytes"], tuple((row.get("partition") or {}).values()))
        for row in pa.table(table.get_add_actions()).to_pylist()
    ]


def _active_values(table: Any) -> set[Values]:
    return {file.values for file in _active(table)}


def _version_with(output: Location, table: Any, note: str) -> int:
    """The version of the newest commit with this note; the newest of all when its log entry has expired."""
    # deltalake's own history() stops every Python thread while it waits for the storage.
    log = output / "_delta_log"
    commits = [file.path for file in log.files() if re.fullmatch(r"\d{20}\.json", file.path)]
    for name in sorted(commits, reverse=True):
        for line in (log / name).read_bytes().splitlines():
            if json.loads(line).get("commitInfo", {}).get("userMetadata") == note:
                return int(name.removesuffix(".json"))
    return int(table.version())


# Writing commits


def _replace_partitions(
    output: Location, table: Any, plan: DeltaPlan, files: list[DeltaFile], gone: list[_ActiveFile], note: str
) -> int:
    from deltalake.transaction import RemoveAction

    now = _now_ms()
    names = plan.partition_columns
    removes = [
        RemoveAction(
            file.path,
            data_change=True,
            deletion_timestamp=now,
            size=file.size,
            partition_values=dict(zip(names, file.values, strict=True)),
        )
        for file in gone
    ]
    with _commit_errors(output):
        # "append" takes the list as it is. "overwrite" finds the files to remove by one conjunction of filters,
        # which cannot name several partitions of a nested layout.
        table.create_write_transaction(
            [*_adds(plan, files), *removes],
            mode="append",
            schema=plan.schema,
            partition_by=names,
            commit_properties=_properties(note),
        )
    return int(_open(output).version())


def _replace_table(output: Location, plan: DeltaPlan, files: list[DeltaFile], note: str, old: Any) -> int:
    """Creates the table, or defines it anew with new columns; older versions stay readable with theirs."""
    from deltalake.transaction import create_table_with_add_actions

    if old is not None and {file.path for file in files} & {file.path for file in _active(old)}:
        raise JobError(
            f"{output}: another program changed the columns of the Delta table after this run was committed; "
            "change them back, or use another output.path"
        )
    described = old.metadata() if old is not None else None
    if output.is_local:
        os.makedirs(output.path, exist_ok=True)
    with _commit_errors(output):
        create_table_with_add_actions(
            _uri(output),
            plan.schema,
            _adds(plan, files),
            mode="error" if old is None else "overwrite",
            partition_by=plan.partition_columns,
            name=described and described.name,
            description=described and described.description,
            configuration=described and described.configuration,
            storage_options=_storage_options(output),
            commit_properties=_properties(note),
        )
    return int(_open(output).version())


def _adds(plan: DeltaPlan, files: list[DeltaFile]) -> list[Any]:
    from deltalake.transaction import AddAction

    now = _now_ms()
    return [
        AddAction(
            file.path,  # deltalake encodes it
            size=file.size,
            partition_values=plan.partition_values(file.partition),
            modification_time=now,
            data_change=True,
            stats=json.dumps({"numRecords": file.num_rows}),
        )
        for file in files
    ]


def _properties(note: str) -> Any:
    from deltalake.transaction import CommitProperties

    # The one free field that every engine shows in a table's history.
    return CommitProperties(custom_metadata={"userMetadata": note})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# The package


def _deltalake() -> ModuleType:
    try:
        import deltalake
        from deltalake.transaction import RemoveAction  # noqa: F401 - older versions lack it
    except ImportError:
        raise InputError(
            "a Delta table needs the package deltalake, which is missing or too old",
            "pip install 'ray-cfnet[delta]'",
        ) from None
    return deltalake


def _open(output: Location) -> Any:
    deltalake = _deltalake()
    try:
        return deltalake.DeltaTable(_uri(output), storage_options=_storage_options(output))
    except (deltalake.exceptions.DeltaError, OSError) as error:
        raise InputError(
            f"{output}: the Delta table cannot be read: {_message(error)}", "check the address and the access to it"
        ) from None


def _uri(output: Location) -> str:
    """deltalake takes addresses for URLs: a `%` or `#` in a bare one would lead elsewhere."""
    scheme = "file" if output.is_local else "s3"
    return f"{scheme}://{quote(output.path)}"


def _storage_options(output: Location) -> dict[str, str] | None:
    """What deltalake does not find out by itself; credentials it takes from the environment (AWS_*).

    How a commit is published is left to its default, a conditional put: Amazon S3, MinIO and moto have it.
    """
    if output.is_local:
        return None
    options = {"AWS_REGION": output.fs.region}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
    return options


@contextmanager
def _commit_errors(output: Location) -> Iterator[None]:
    try:
        yield
    except (_deltalake().exceptions.DeltaError, OSError) as error:
        raise JobError(
            # It may have failed after the deed, while the log was tidied up.
            f"{output}: the commit to the Delta table failed: {_message(error)}; the table has all of it or "
            "nothing: run again, which does not commit twice"
        ) from None


def _message(error: BaseException) -> str:
    """On one line: deltalake draws its causes as a coloured tree."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:400]
