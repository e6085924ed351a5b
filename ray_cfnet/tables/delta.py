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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables.storage import Location

_NULL = "__HIVE_DEFAULT_PARTITION__"
_PART = re.compile(r"(.*/)?part-\d{5,}-[0-9a-f]{16}\.parquet")
_LOG_FILE = re.compile(r"\d{20}\.(json|checkpoint\..*)")
_ANOTHER_PATH = "set output.path to another place"

Values = tuple[str | None, ...]
"""A partition's values, in the order of the partition columns."""


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
            raise InputError(f"{output}: holds a Delta table", f"set output.format to delta, or {_ANOTHER_PATH}")
    elif format == "delta":
        plain = next((file.path for file in output.files() if _PART.fullmatch(file.path)), None)
        if plain:
            raise InputError(
                f"{output}: holds plain Parquet files of an earlier run, such as {plain}, and no Delta table",
                f"{_ANOTHER_PATH}, or output.format to parquet",
            )


def prepare_delta(output: Location, columns: pa.Schema, partitions: list[str]) -> None:
    """Everything that can be known to fail before hours of work: call it before the first file is written.

    Creates the table, without rows, when there is none: files of a run that dies before its commit would make
    the output look like a plain one. Raises InputError.
    """
    check_format(output, "delta")
    plan = _plan(output, columns, partitions)
    if not is_delta(output):
        _replace_table(output, plan, [], "ray-cfnet: empty table", None)
    else:
        _replaces_table(output, _open(output), plan)


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
    plan = _plan(output, columns, partitions)
    strangers = sorted({file.partition for file in files} - set(partitions))
    if strangers:
        raise ValueError(f"files of {strangers}, which are not among the partitions to replace")
    note = f"ray-cfnet run {run_id}"
    if not is_delta(output):
        return _replace_table(output, plan, files, note, None)
    table = _open(output)
    if _replaces_table(output, table, plan):
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


# The plan of a commit


@dataclass(frozen=True)
class _Plan:
    columns: pa.Schema
    """All columns with the types Delta reads them as, the partition columns last."""
    partition_columns: list[str]
    values: dict[str, Values]

    @property
    def replaced_values(self) -> set[Values]:
        return set(self.values.values())

    def partition_values(self, partition: str) -> dict[str, str | None]:
        return dict(zip(self.partition_columns, self.values[partition], strict=True))


def _plan(output: Location, columns: pa.Schema, partitions: list[str]) -> _Plan:
    _deltalake()
    if unquote(output.path) != output.path or "\\" in output.path:
        # deltalake decodes the address twice, and would write the log beside the files or find another table's.
        raise InputError(
            f"{output}: a Delta table cannot lie at an address with %-escapes or backslashes", _ANOTHER_PATH
        )
    parsed = {partition: _parse(output, partition) for partition in partitions}
    names = {tuple(name for name, _ in pairs): partition for partition, pairs in parsed.items()}
    if len(names) > 1:
        raise InputError(
            f"{output}: partitions {' and '.join(sorted(names.values())[:2])} have different columns",
            "lay the table out with the same columns in the same order in every path, or set output.format to parquet",
        )
    partition_columns = list(next(iter(names), ()))
    fields = [*_delta_fields(output, columns), *(pa.field(name, pa.string()) for name in partition_columns)]
    _check_names(output, [field.name for field in fields])
    values = {partition: tuple(value for _, value in pairs) for partition, pairs in parsed.items()}
    return _Plan(pa.schema(fields), partition_columns, values)


def _parse(output: Location, partition: str) -> list[tuple[str, str | None]]:
    """`ds=2026-11-15/city=New%20York` as columns and values."""
    pairs: list[tuple[str, str | None]] = []
    for part in partition.split("/") if partition else []:
        name, separator, value = part.partition("=")
        if not (name and separator and value):  # Delta cannot tell an empty string from null
            raise InputError(
                f"{output}: partition {partition}: {part} is not column=value, which Delta needs",
                "lay the table out as column=value, or set output.format to parquet",
            )
        pairs.append((unquote(name), None if value == _NULL else unquote(value)))
    return pairs


def _check_names(output: Location, names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            raise InputError(
                f"{output}: columns {seen[name.lower()]} and {name} are one to Delta, which ignores case and "
                "takes partition columns from the path alone",
                "give one of them another name, or set output.format to parquet",
            )
        seen[name.lower()] = name


# Column types


class _LackingTypeError(Exception):
    """Delta has no such type; the message says what to use instead."""


_INSTEAD: list[tuple[Callable[[pa.DataType], bool], str]] = [
    # deltalake would take these as signed, and fail to read values above the signed range.
    (pa.types.is_unsigned_integer, "the next larger signed integer, decimal128(20, 0) for uint64"),
    (pa.types.is_float16, "float32"),
    (pa.types.is_time, "a string"),
    (pa.types.is_duration, "int64"),
    (pa.types.is_decimal, "decimal128 with at most 38 digits and no negative scale"),
    # deltalake has nanoseconds, but as a table feature that few other readers know.
    (pa.types.is_timestamp, "timestamp[us]"),
    (pa.types.is_null, "the type that its values are meant to have"),
]
_ALIKE = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)


def _delta_fields(output: Location, columns: pa.Schema) -> list[pa.Field]:
    fields, faults = [], []
    for column in columns:
        try:
            fields.append(pa.field(column.name, _delta_type(column.type), metadata=_comment(column)))
        except _LackingTypeError as error:
            faults.append(f"column {column.name} is {column.type}; use {error}")
    if faults:
        raise InputError(
            "\n  ".join([f"{output}: types that a Delta table does not have", *faults]),
            "change the types in the job that writes the input table, or set output.format to parquet",
        )
    return fields


def _comment(column: pa.Field) -> dict[str, str] | None:
    """The column's meaning, where Delta keeps it. Nothing else: keys under `delta.` change how it is read."""
    comment = (column.metadata or {}).get(b"comment")
    return {"comment": comment.decode(errors="replace")} if comment else None


def _delta_type(kind: pa.DataType) -> pa.DataType:
    """The type as a Delta table reads it from a Parquet file."""
    if isinstance(kind, pa.BaseExtensionType):
        raise _LackingTypeError(f"its storage type, {kind.storage_type}")
    if pa.types.is_dictionary(kind):
        return _delta_type(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        # Parquet keeps moments in UTC whatever their time zone, and has no whole seconds.
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return kind
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_delta_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _delta_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_delta_type(kind.key_type), _delta_type(kind.item_type))
    if any(is_kind(kind) for is_kind in _ALIKE):
        return kind
    instead = (remedy for is_kind, remedy in _INSTEAD if is_kind(kind))
    raise _LackingTypeError(next(instead, "a number, string, binary, date, timestamp, list, struct or map"))


# Comparing with the table that is there


def _replaces_table(output: Location, table: Any, plan: _Plan) -> bool:
    """Whether the columns differ, so that the table has to be defined anew.

    Raises InputError when rows would be left that do not have the new columns, and for a table that other
    programs have given features under which a file's path alone no longer says what its rows are.
    """
    protocol = table.protocol()
    if protocol.min_reader_version == 2 or {"columnMapping", "deletionVectors"} & set(protocol.reader_features or []):
        raise InputError(
            f"{output}: the Delta table uses column mapping or deletion vectors, which ray-cfnet cannot write",
            f"switch them off in the table's properties, or {_ANOTHER_PATH}",
        )
    difference = _difference(table, plan)
    if not difference:
        return False
    same_partitioning = table.metadata().partition_columns == plan.partition_columns
    active = {file.values for file in _active(table)}
    if active and not (same_partitioning and active <= plan.replaced_values):
        raise InputError(
            f"{output}: the Delta table there has other columns: {difference}",
            f"run on all partitions at once, which replaces the whole table, or {_ANOTHER_PATH}"
            if same_partitioning
            else _ANOTHER_PATH,
        )
    return True


def _difference(table: Any, plan: _Plan) -> str:
    """Empty when the columns are the same; their order does not matter, readers go by name."""
    there, here = (
        {field.name: _type_name(field.type) for field in schema.fields}
        for schema in (table.schema(), _delta_schema(plan))
    )
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    shown = [f"{name} ({there.get(name, 'missing')} there, {here.get(name, 'missing')} here)" for name in names[:5]]
    if len(names) > 5:
        shown.append(f"and {len(names) - 5} more")
    if table.metadata().partition_columns != plan.partition_columns:
        by = [", ".join(p) or "nothing" for p in (table.metadata().partition_columns, plan.partition_columns)]
        shown.append(f"partitioned by {by[0]} there, by {by[1]} here")
    return ", ".join(shown)


def _type_name(kind: Any) -> str:
    plain = json.loads(kind.to_json())
    return plain if isinstance(plain, str) else json.dumps(plain)


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
    output: Location, table: Any, plan: _Plan, files: list[DeltaFile], gone: list[_ActiveFile], note: str
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
            schema=_delta_schema(plan),
            partition_by=names,
            commit_properties=_properties(note),
        )
    return int(_open(output).version())


def _replace_table(output: Location, plan: _Plan, files: list[DeltaFile], note: str, old: Any) -> int:
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
            _delta_schema(plan),
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


def _adds(plan: _Plan, files: list[DeltaFile]) -> list[Any]:
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
            "output.format is delta, and the package deltalake is missing or too old",
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


def _delta_schema(plan: _Plan) -> Any:
    return _deltalake().Schema.from_arrow(plan.columns)


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
