"""Views over an output for BI engines, as SQL text: explanations, changes_long, rejects and runs.

Nothing is run here. Trino, Athena and BigQuery declare external tables first (`..._files`) and put the views on
them; DuckDB and Spark read the files in the view itself.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ray_cfnet.cluster.ledger import REJECTS, RUNS
from ray_cfnet.cluster.manifest import list_runs
from ray_cfnet.errors import InputError
from ray_cfnet.explain.columns import REJECT_COLUMNS, options_in, rejects_schema
from ray_cfnet.report.dialects import Dialect, Tree, dialect_of
from ray_cfnet.tables.delta import active_files, is_delta
from ray_cfnet.tables.storage import Location

DialectName = Literal["duckdb", "trino", "athena", "bigquery", "spark"]
DIALECTS: tuple[str, ...] = get_args(DialectName)

_RUN_COLUMNS = {
    "run_id": "text",
    "model_id": "text",
    "state": "text",
    "finished_at": "text",
    "input": "text",
    "rows_in": "integer",
    "rows_out": "integer",
    "rows_rejected": "integer",
    "cf_validity": "number",
    "fcf_validity": "number",
    "mean_fcf_distance": "number",
    "seconds": "number",
    "rows_per_s": "number",
}


@dataclass(frozen=True)
class OutputShape:
    """What an output's files look like."""

    output: Location
    is_delta: bool
    columns: pa.Schema
    levels: tuple[str, ...]
    """As in Tree."""
    features: dict[str, str]
    keys: tuple[str, ...]
    has_rejects: bool

    @classmethod
    def of(cls, output: str) -> "OutputShape":
        """Raises InputError when no finished run left rows."""
        place = Location.of(output)
        runs = [run for run in list_runs(place) if run.get("rows_out")]
        delta = is_delta(place)
        present = set(active_files(place)) if delta else {file.path for file in place.files()}
        for run in reversed(runs):
            written = [file for unit in run["units"] for file in unit["files"] if file in present]
            if written and "table" in run:
                columns = pq.read_schema((place / written[0]).path, filesystem=place.fs)
                partition = next(iter(run["partitions"]))
                levels = tuple(_column_of(part) for part in partition.split("/")) if partition else ()
                table = run["table"]
                keys = tuple(key for key in table["keys"] if key in columns.names)
                has_rejects = any(file.path.endswith(".parquet") for file in (place / REJECTS).files())
                return cls(place, delta, columns, levels, table["features"], keys, has_rejects)
        raise InputError(f"{place}: no rows of a finished run in it", "run ray-cfnet explain first")

    @cached_property
    def passed_through(self) -> list[str]:
        """The input's own columns."""
        return list(self.columns.names[: self.columns.names.index("pred_label")])

    @property
    def options(self) -> list[str]:
        """What the columns of each feasible counterfactual begin with, the nearest first."""
        return options_in(self.columns.names)

    @property
    def partition_columns(self) -> list[str]:
        return [level for level in self.levels if level]


def _column_of(directory: str) -> str:
    name, separator, _ = directory.partition("=")
    return unquote(name) if separator else ""


def view_statements(output: str, dialect: DialectName) -> list[str]:
    """The statements that define the views, in order, each without its semicolon."""
    shape, sql = OutputShape.of(output), dialect_of(dialect)
    if not all(shape.levels) and dialect != "duckdb":
        raise InputError(
            f"{shape.output}: its partition directories are not column=value", "only --dialect duckdb reads such a tree"
        )
    return [
        *_explanations(shape, sql),
        _view(sql, "changes_long", _changes_long(shape, sql)),
        *_rejects(shape, sql),
        *_runs(shape, sql),
    ]


def _view(sql: Dialect, name: str, query: str) -> str:
    return f"CREATE OR REPLACE {sql.view_kind} {sql.name(name)} AS\n{query}"


def _explanations(shape: OutputShape, sql: Dialect) -> list[str]:
    if shape.is_delta:
        return [*sql.delta_table("explanations", str(shape.output)), *sql.comments("explanations", shape.columns)]
    tree = Tree(str(shape.output), shape.levels, shape.columns)
    return [*sql.parquet_table("explanations", tree), *sql.comments("explanations", shape.columns)]


def _changes_long(shape: OutputShape, sql: Dialect) -> str:
    """One SELECT a feature and option: every engine reads only their columns, and of `feature = 'x'` only those."""
    ways = enumerate(shape.options, start=1)
    return "\nUNION ALL\n".join(
        _changes(shape, sql, name, prefix, number) for number, prefix in ways for name in shape.features
    )


def _changes(shape: OutputShape, sql: Dialect, feature: str, prefix: str, number: int) -> str:
    """A feature's changes in the ways of one option; without a way its column is null, and nothing differs from it."""
    old, new = sql.name(feature), sql.name(f"{prefix}{feature}")
    is_number = shape.features[feature] == "continuous"
    chosen = [
        *map(sql.name, [*shape.keys, *shape.partition_columns, "run_id"]),
        f"{number} AS option_number",
        f"{sql.text_value(feature)} AS feature",
        f"CAST({old} AS {sql.text}) AS from_value",
        f"CAST({new} AS {sql.text}) AS to_value",
        f"CAST({old if is_number else 'NULL'} AS {sql.number}) AS from_number",
        f"CAST({new if is_number else 'NULL'} AS {sql.number}) AS to_number",
    ]
    source = sql.name("explanations")
    return f"SELECT {', '.join(chosen)}\nFROM {source}\nWHERE row_status = 'ok' AND {old} <> {new}"


def _rejects(shape: OutputShape, sql: Dialect) -> list[str]:
    if shape.has_rejects:
        columns = rejects_schema(pa.schema([shape.columns.field(name) for name in shape.passed_through]))
        tree = Tree(str(shape.output / REJECTS), shape.levels, columns)
        return [*sql.parquet_table("rejects", tree), *sql.comments("rejects", columns)]
    # There is no file yet that an engine could take the columns from.
    own = ", ".join(map(sql.name, [*shape.passed_through, *shape.partition_columns]))
    empty = ", ".join(f"CAST(NULL AS {sql.text}) AS {name}" for name in REJECT_COLUMNS)
    return [_view(sql, "rejects", f"SELECT {own}, {empty}\nFROM {sql.name('explanations')}\nWHERE 1 = 0")]


def _runs(shape: OutputShape, sql: Dialect) -> list[str]:
    manifests = sql.manifests("runs", f"{shape.output}/{RUNS}", _RUN_COLUMNS)
    if manifests:
        return manifests
    # These engines read JSON line by line; a manifest is one object over many lines. What the rows say of their run:
    return [
        _view(
            sql,
            "runs",
            "SELECT run_id, model_id, count(*) AS rows_out,\n"
            "  sum(CASE WHEN row_status = 'ok' THEN 1.0 ELSE 0.0 END)\n"
            "    / nullif(sum(CASE WHEN row_status IN ('ok', 'no_feasible_cf') THEN 1.0 END), 0) AS fcf_validity,\n"
            "  avg(fcf_distance) AS mean_fcf_distance\n"
            f"FROM {sql.name('explanations')}\nGROUP BY run_id, model_id",
        )
    ]


def as_script(statements: list[str], dialect: str, output: str) -> str:
    """The statements as a file."""
    told = output.replace("\n", " ")
    return f"-- ray-cfnet sql: views over {told} for {dialect}\n\n" + "".join(f"{one};\n\n" for one in statements)


def write_views(output: str, dialect: DialectName, directory: str | None = None) -> dict[str, Any]:
    """The views' script, and where it was saved if a directory is given."""
    statements = view_statements(output, dialect)
    script = as_script(statements, dialect, output)
    file = None
    if directory is not None:
        place = Location.of(directory) / f"views.{dialect}.sql"
        place.write_bytes(script.encode())
        file = str(place)
    return {"dialect": dialect, "sql": script, "file": file}
