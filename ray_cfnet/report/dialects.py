"""How engines differ: quotes, names of types, and how each comes to read Parquet files in a tree."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa

from ray_cfnet.errors import InputError


@dataclass(frozen=True)
class Tree:
    """Parquet files in partition directories."""

    place: str
    levels: tuple[str, ...]
    """The directories' columns, outermost first; empty for a level that is no column=value."""
    columns: pa.Schema

    @property
    def partitions(self) -> list[str]:
        return [level for level in self.levels if level]


class Dialect(ABC):
    """Standard SQL; an engine overrides what it does its own way."""

    text, number, integer = "VARCHAR", "DOUBLE", "BIGINT"
    view_kind = "VIEW"
    quote = '"'
    backslash_escapes = False

    def name(self, name: str) -> str:
        """An identifier, whatever is in it."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def text_value(self, text: str) -> str:
        """A string literal."""
        if self.backslash_escapes:
            return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return "'" + text.replace("'", "''") + "'"

    @abstractmethod
    def parquet_table(self, name: str, tree: Tree) -> list[str]:
        """Statements that make a table or view of Parquet files."""

    @abstractmethod
    def delta_table(self, name: str, place: str) -> list[str]:
        """The same of a Delta table."""

    def manifests(self, name: str, place: str, columns: dict[str, str]) -> list[str]:
        """A view over the runs' manifests; empty where the engine cannot read them."""
        del name, place, columns
        return []

    def comments(self, name: str, columns: pa.Schema) -> list[str]:
        """Statements for the columns' comments, where they are no part of the table's definition."""
        del name, columns
        return []


class DuckDB(Dialect):
    def parquet_table(self, name: str, tree: Tree) -> list[str]:
        # By levels, not **: that would find _rejects too.
        below = [f"{_plain(level)}=*" if level else "*" for level in tree.levels]
        files = "/".join([_plain(tree.place), *below, "part-*.parquet"])
        source = f"read_parquet({self.text_value(files)}, hive_partitioning = true, union_by_name = true)"
        return [f"CREATE OR REPLACE VIEW {self.name(name)} AS\nSELECT * FROM {source}"]

    def delta_table(self, name: str, place: str) -> list[str]:
        return [f"CREATE OR REPLACE VIEW {self.name(name)} AS\nSELECT * FROM delta_scan({self.text_value(place)})"]

    def manifests(self, name: str, place: str, columns: dict[str, str]) -> list[str]:
        types = {"text": self.text, "integer": self.integer, "number": self.number}
        declared = ", ".join(f"{column}: '{types[kind]}'" for column, kind in columns.items())
        files = self.text_value(f"{_plain(place)}/*/manifest.json")
        source = f"read_json({files}, columns = {{{declared}}}, format = 'auto', maximum_object_size = 1000000000)"
        chosen = "* REPLACE (replace(finished_at, '+00:00', '')::TIMESTAMP AS finished_at)"
        return [f"CREATE OR REPLACE VIEW {self.name(name)} AS\nSELECT {chosen}\nFROM {source}"]

    def comments(self, name: str, columns: pa.Schema) -> list[str]:
        return [
            f"COMMENT ON COLUMN {self.name(name)}.{self.name(column)} IS {self.text_value(comment)}"
            for column, comment in _comments(columns).items()
        ]


def _plain(path: str) -> str:
    """A path in a glob that matches nothing but itself."""
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in path)


class Spark(Dialect):
    text, number, integer = "STRING", "DOUBLE", "BIGINT"
    view_kind = "TEMPORARY VIEW"
    quote, backslash_escapes = "`", True

    def parquet_table(self, name: str, tree: Tree) -> list[str]:
        options = f"OPTIONS (path {self.text_value(tree.place)}, mergeSchema 'true')"
        return [f"CREATE OR REPLACE TEMPORARY VIEW {self.name(name)}\nUSING parquet\n{options}"]

    def delta_table(self, name: str, place: str) -> list[str]:
        return [f"CREATE OR REPLACE TEMPORARY VIEW {self.name(name)} AS\nSELECT * FROM delta.{self.name(place)}"]

    def manifests(self, name: str, place: str, columns: dict[str, str]) -> list[str]:
        files = self.text_value(f"{place}/*/manifest.json")
        source = f"{self.name(f'{name}_files')}\nUSING json\nOPTIONS (path {files}, multiLine 'true')"
        return [
            f"CREATE OR REPLACE TEMPORARY VIEW {source}",
            f"CREATE OR REPLACE TEMPORARY VIEW {self.name(name)} AS\n"
            f"SELECT {', '.join(columns)}\nFROM {self.name(f'{name}_files')}",
        ]


class BigQuery(Dialect):
    text, number, integer = "STRING", "FLOAT64", "INT64"
    quote, backslash_escapes = "`", True

    def name(self, name: str) -> str:
        return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"

    def parquet_table(self, name: str, tree: Tree) -> list[str]:
        # One wildcard is allowed; the first level keeps _rejects and _runs out.
        files = self.text_value(f"{tree.place}/{tree.levels[0]}=*" if tree.levels else f"{tree.place}/part-*.parquet")
        hive = f", hive_partition_uri_prefix = {self.text_value(tree.place)}" if tree.levels else ""
        parts = "WITH PARTITION COLUMNS\n" if tree.levels else ""
        table = f"CREATE OR REPLACE EXTERNAL TABLE {self.name(f'{name}_files')}\n{parts}"
        return [
            f"{table}OPTIONS (format = 'PARQUET', uris = [{files}]{hive})",
            f"CREATE OR REPLACE VIEW {self.name(name)} AS\nSELECT * FROM {self.name(f'{name}_files')}",
        ]

    def delta_table(self, name: str, place: str) -> list[str]:
        return [
            f"CREATE OR REPLACE EXTERNAL TABLE {self.name(name)}\n"
            f"OPTIONS (format = 'DELTA_LAKE', uris = [{self.text_value(place)}])"
        ]


class Trino(Dialect):
    def parquet_table(self, name: str, tree: Tree) -> list[str]:
        files = f"{name}_files"
        fields = [*_fields(self, tree.columns), *(f"{self.name(part)} {self.text}" for part in tree.partitions)]
        by = ", ".join(map(self.text_value, tree.partitions))
        partitioned = f", partitioned_by = ARRAY[{by}]" if tree.partitions else ""
        created = (
            f"CREATE TABLE {self.name(files)} (\n  " + ",\n  ".join(fields) + "\n)\n"
            f"WITH (format = 'PARQUET', external_location = {self.text_value(tree.place)}{partitioned})"
        )
        # For a schema called default; again after each night, for new partitions.
        synced = f"CALL system.sync_partition_metadata('default', {self.text_value(files)}, 'FULL')"
        view = f"CREATE OR REPLACE VIEW {self.name(name)} AS\nSELECT * FROM {self.name(files)}"
        return [_forgotten(self, files), created, *([synced] if tree.partitions else []), view]

    def delta_table(self, name: str, place: str) -> list[str]:
        return [f"CALL system.register_table('default', {self.text_value(name)}, {self.text_value(place)})"]


class Athena(Trino):
    """Queries as Trino's, definitions as Hive's."""

    def parquet_table(self, name: str, tree: Tree) -> list[str]:
        hive, files = Spark(), f"{name}_files"
        fields = ",\n  ".join(_fields(hive, tree.columns, _HIVE_NAMES))
        by = ", ".join(f"{hive.name(part)} STRING" for part in tree.partitions)
        partitioned = f"PARTITIONED BY ({by})\n" if tree.partitions else ""
        return [
            _forgotten(hive, files),
            f"CREATE EXTERNAL TABLE {hive.name(files)} (\n  {fields}\n)\n{partitioned}"
            f"STORED AS PARQUET\nLOCATION {hive.text_value(tree.place + '/')}",
            *([f"MSCK REPAIR TABLE {hive.name(files)}"] if tree.partitions else []),
            f"CREATE OR REPLACE VIEW {self.name(name)} AS\nSELECT * FROM {self.name(files)}",
        ]

    def delta_table(self, name: str, place: str) -> list[str]:
        hive = Spark()
        return [
            f"CREATE EXTERNAL TABLE IF NOT EXISTS {hive.name(name)}\n"
            f"LOCATION {hive.text_value(place + '/')}\nTBLPROPERTIES ('table_type' = 'DELTA')"
        ]


def _forgotten(sql: Dialect, table: str) -> str:
    """External tables keep the columns they were declared with. To drop one deletes no file."""
    return f"DROP TABLE IF EXISTS {sql.name(table)}"


def dialect_of(name: str) -> Dialect:
    dialects = (DuckDB(), Trino(), Athena(), BigQuery(), Spark())
    return {type(dialect).__name__.lower(): dialect for dialect in dialects}[name]


def _comments(columns: pa.Schema) -> dict[str, str]:
    found = {field.name: (field.metadata or {}).get(b"comment") for field in columns}
    return {name: comment.decode() for name, comment in found.items() if comment}


def _fields(sql: Dialect, columns: pa.Schema, names: dict[str, str] | None = None) -> list[str]:
    """Columns with types and comments; `names`: types that are called otherwise than in Trino."""
    comments = _comments(columns)
    types = {field.name: _type(field.type) for field in columns}
    return [
        f"{sql.name(name)} {(names or {}).get(kind, kind)}"
        + (f" COMMENT {sql.text_value(comments[name])}" if name in comments else "")
        for name, kind in types.items()
    ]


_TYPES = [
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INTEGER"),
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_float32, "REAL"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_timestamp, "TIMESTAMP"),
    (pa.types.is_string, "VARCHAR"),
    (pa.types.is_large_string, "VARCHAR"),
    (pa.types.is_binary, "VARBINARY"),
]
_HIVE_NAMES = {"INTEGER": "INT", "REAL": "FLOAT", "VARCHAR": "STRING", "VARBINARY": "BINARY"}


def _type(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    for is_kind, name in _TYPES:
        if is_kind(kind):
            return name
    raise InputError(f"columns of type {kind} have no counterpart in Trino", "use --dialect duckdb, bigquery or spark")
