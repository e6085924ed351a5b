"""What a run's columns and partitions are to a Delta table, and how they differ from the table that is there."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ray_cfnet.errors import InputError
from ray_cfnet.tables.storage import Location

ANOTHER_PATH = "set output.path to another place"
_NULL = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[str | None, ...]
"""A partition's values, in the order of the partition columns."""


@dataclass(frozen=True)
class DeltaPlan:
    """The table as a run's commit would leave it."""

    columns: pa.Schema
    """All columns with the types Delta reads them as, the partition columns last."""
    partition_columns: list[str]
    values: dict[str, Values]

    @property
    def replaced_values(self) -> set[Values]:
        return set(self.values.values())

    @property
    def schema(self) -> Any:
        from deltalake import Schema

        return Schema.from_arrow(self.columns)

    def partition_values(self, partition: str) -> dict[str, str | None]:
        return dict(zip(self.partition_columns, self.values[partition], strict=True))


def plan_delta(output: Location, columns: pa.Schema, partitions: list[str]) -> DeltaPlan:
    """Raises InputError for an address, columns or partitions that no Delta table can have."""
    if unquote(output.path) != output.path or "\\" in output.path:
        # deltalake decodes the address twice, and would write the log beside the files or find another table's.
        raise InputError(
            f"{output}: a Delta table cannot lie at an address with %-escapes or backslashes", ANOTHER_PATH
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
    return DeltaPlan(pa.schema(fields), partition_columns, values)


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


def check_features(place: Location, table: Any) -> None:
    """Raises InputError for a table whose files alone do not say what its rows are."""
    protocol = table.protocol()
    if protocol.min_reader_version == 2 or {"columnMapping", "deletionVectors"} & set(protocol.reader_features or []):
        raise InputError(
            f"{place}: the Delta table uses column mapping or deletion vectors, which ray-cfnet does not know",
            "switch them off in the table's properties, or use another path",
        )


def replaces_table(output: Location, table: Any, active: set[Values], plan: DeltaPlan) -> bool:
    """Whether the columns differ from those of the DeltaTable there, so that it has to be defined anew.

    `active`: the partitions in which it has rows.

    Raises InputError when rows would be left that do not have the new columns, and for a table that other
    programs have given features under which a file's path alone no longer says what its rows are.
    """
    check_features(output, table)
    difference = _difference(table, plan)
    if not difference:
        return False
    same_partitioning = table.metadata().partition_columns == plan.partition_columns
    if active and not (same_partitioning and active <= plan.replaced_values):
        raise InputError(
            f"{output}: the Delta table there has other columns: {difference}",
            f"run on all partitions at once, which replaces the whole table, or {ANOTHER_PATH}"
            if same_partitioning
            else ANOTHER_PATH,
        )
    return True


def _difference(table: Any, plan: DeltaPlan) -> str:
    """Empty when the columns are the same; their order does not matter, readers go by name."""
    there, here = (
        {field.name: _type_name(field.type) for field in schema.fields} for schema in (table.schema(), plan.schema)
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
