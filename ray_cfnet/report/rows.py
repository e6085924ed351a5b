"""The rows that a run wrote, for questions in SQL: DuckDB over its Parquet files, in bounded memory."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from ray_cfnet.cluster.ledger import REJECTS, RunFiles
from ray_cfnet.errors import InputError
from ray_cfnet.tables.delta import active_files, is_delta
from ray_cfnet.tables.storage import Location

if TYPE_CHECKING:
    import duckdb

_MEMORY = "1GB"
_LABELS = ("VARCHAR", "BOOLEAN", "ENUM")


@dataclass(frozen=True)
class RunRows:
    """A run's rows as the tables `explained` and `rejected`, and what their columns are."""

    connection: "duckdb.DuckDBPyConnection"
    columns: dict[str, str]
    """The explained table's columns and their types in DuckDB; empty when no file of the run is left."""
    features: dict[str, str]
    """continuous or categorical, in the table's order."""
    keys: list[str]
    target: str | None
    classes: list[str] | None
    """The target's classes as text; None where the run does not say."""
    has_rejects: bool
    files_missing: int
    """Files of the run that a later run has replaced."""

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The answer's rows by column name."""
        cursor = self.connection.execute(sql, list(parameters))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def one(self, sql: str) -> dict[str, Any]:
        return self.query(sql)[0]


def identifier(name: str) -> str:
    """A column's name as SQL takes it, whatever characters are in it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as SQL takes it."""
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def open_rows(output: Location, manifest: dict[str, Any]) -> Iterator[RunRows]:
    """The rows of a run that are still in place. Raises InputError without the package duckdb."""
    try:
        import duckdb
    except ImportError:
        raise InputError("reports need the package duckdb", "pip install 'ray-cfnet[report]'") from None
    written = sorted({file for unit in manifest["units"] for file in unit["files"]})
    in_place = RunFiles(output, manifest["run_id"]).files_in_place()
    rejected = [file for file in written if file.startswith(f"{REJECTS}/") and file in in_place]
    explained = [file for file in written if not file.startswith(f"{REJECTS}/")]
    visible = set(active_files(output)) if is_delta(output) else in_place
    present = [file for file in explained if file in visible]
    with tempfile.TemporaryDirectory(prefix="ray-cfnet-") as spill, duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute(f"SET temp_directory = {literal(spill)}")
        connection.execute("SET preserve_insertion_order = false")
        connection.execute("SET TimeZone = 'UTC'")
        _register(connection, "explained", output, present)
        _register(connection, "rejected", output, rejected)
        described = connection.execute("DESCRIBE explained").fetchall() if present else []
        columns = {str(name): str(kind) for name, kind, *_ in described}
        table = manifest.get("table") or {}  # runs of earlier versions do not say
        yield RunRows(
            connection,
            columns,
            table.get("features") or _guessed_features(columns),
            [key for key in table.get("keys", ()) if key in columns],
            table["target"] if table.get("target") in columns else None,
            table.get("classes"),
            bool(rejected),
            len(explained) - len(present),
        )


def _register(connection: "duckdb.DuckDBPyConnection", name: str, output: Location, files: list[str]) -> None:
    places = [(output / file).path for file in files]
    if not places:
        return
    if output.is_local:
        listed = ", ".join(map(literal, places))
        source = f"read_parquet([{listed}], hive_partitioning = true, union_by_name = true)"
        connection.execute(f"CREATE VIEW {identifier(name)} AS SELECT * FROM {source}")  # noqa: S608 - quoted above
    else:
        # Not DuckDB's own S3: that is an extension to download, with credentials of its own.
        dataset = ds.dataset(places, filesystem=output.fs, format="parquet", partitioning="hive")
        connection.register(name, dataset)


def _guessed_features(columns: dict[str, str]) -> dict[str, str]:
    """By their counterfactual columns, which stand between pred_proba and cf_valid."""
    names = list(columns)
    if "cf_valid" not in names:
        return {}
    between = names[names.index("pred_proba") + 1 : names.index("cf_valid")]
    features = [name.removeprefix("cf_") for name in between]
    return {name: "categorical" if columns[name].startswith(_LABELS) else "continuous" for name in features}
