"""The views run in DuckDB and say what the files say; the other engines' SQL parses and asks the same."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import sqlglot
from sqlglot import exp

from ray_cfnet.errors import InputError
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.report.dialects import dialect_of
from ray_cfnet.report.views import DIALECTS, view_statements, write_views
from ray_cfnet.tables.codec import encode
from tests.unit.helpers import CONFIG, people
from tests.unit.outputs import explained_output, telling_bundle
from tests.unit.test_report import replaced

STRANGE = "a 'b' \"c\" `d` [e] *f?"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Two days, a few rejects, and a path and a column that want quoting."""
    directory = tmp_path_factory.mktemp("views") / STRANGE
    days = {}
    for day in (14, 15):
        rows = people(700, seed=day)
        rows = replaced(rows, "income", [None] * (day - 12) + rows["income"].to_pylist()[day - 12 :])
        days[f"2026-11-{day}"] = rows.rename_columns(
            [STRANGE if name == "note" else name for name in rows.column_names]
        )
    return directory / "out", explained_output(directory, days)


@pytest.fixture
def connection(made: tuple[Path, dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for statement in view_statements(str(made[0]), "duckdb"):
        connection.execute(statement)
    return connection


def rows_of(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output, partitioning="hive").to_table().to_pylist()


def changes_of(output: Path) -> Counter[tuple]:
    return Counter(
        (row["id"], row["ds"], name, str(row[name]), str(row[f"fcf_{name}"]))
        for row in rows_of(output)
        if row["row_status"] == "ok"
        for name in CONFIG.table.features
        if row[name] != row[f"fcf_{name}"]
    )


def test_duckdb_sees_every_row_with_its_partition(connection: Any, made: tuple[Path, dict[str, Any]]) -> None:
    found = connection.execute("SELECT ds::VARCHAR, count(*) FROM explanations GROUP BY 1 ORDER BY 1").fetchall()
    assert found == [("2026-11-14", 698), ("2026-11-15", 697)]
    notes = connection.execute(f"SELECT count({dialect_of('duckdb').name(STRANGE)}) FROM explanations").fetchall()
    assert notes == [(1395,)]


def test_changes_long_has_one_row_a_change(connection: Any, made: tuple[Path, dict[str, Any]]) -> None:
    changes = changes_of(made[0])
    assert sum(changes.values()) > 500
    found = connection.execute("SELECT id, ds::VARCHAR, feature, from_value, to_value FROM changes_long").fetchall()
    assert Counter(found) == changes
    total = connection.execute("SELECT count(*) FROM changes_long").fetchall()[0][0]
    assert total == connection.execute("SELECT sum(fcf_num_changed) FROM explanations").fetchall()[0][0]
    assert connection.execute(
        "SELECT DISTINCT feature FROM changes_long WHERE from_number IS NULL ORDER BY 1"
    ).fetchall() == [("grade",), ("housing",)]
    wrong = "from_number <> from_value::DOUBLE OR to_number <> to_value::DOUBLE"
    assert connection.execute(
        f"SELECT count(*) FROM changes_long WHERE from_number IS NOT NULL AND ({wrong})"
    ).fetchall() == [(0,)]


def test_rejects_and_runs_are_those_of_the_manifest(connection: Any, made: tuple[Path, dict[str, Any]]) -> None:
    manifest = made[1]
    rejects = connection.execute("SELECT reject_reason, reject_column, count(*) FROM rejects GROUP BY ALL").fetchall()
    assert rejects == [("null", "income", 5)]
    [run] = connection.execute("FROM runs").fetchdf().to_dict("records")
    for name in ("run_id", "model_id", "state", "rows_in", "rows_out", "rows_rejected", "fcf_validity", "seconds"):
        assert run[name] == manifest[name]
    assert str(run["finished_at"]) == manifest["finished_at"][:19].replace("T", " ")


def test_comments_reach_the_engine(connection: Any) -> None:
    found = dict(
        connection.execute(
            "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = 'explanations' AND comment <> ''"
        ).fetchall()
    )
    assert found["pred_label"] == "the predicted class"
    assert "income" in found["fcf_income"]


def test_further_options_and_rows_left_out_are_told_apart(tmp_path: Path) -> None:
    earlier = explained_output(tmp_path, {"2026-11-13": people(300, seed=3)})
    manifest = tmp_path / "out" / "_runs" / earlier["run_id"] / "manifest.json"
    # A night apart: within the same second their order would be that of their ids.
    manifest.write_text(json.dumps({**earlier, "finished_at": "2000-01-01T04:20:00+00:00"}))
    bundle = telling_bundle()
    bundle.reference = Explainer(bundle, None).reference(encode(people(1000, seed=5), bundle.schema)[0])
    explained_output(tmp_path, {"2026-11-14": people(700, seed=4)}, bundle, num_options=2, only="pred_label=0")
    connection = duckdb.connect()
    for statement in view_statements(str(tmp_path / "out"), "duckdb"):
        connection.execute(statement)
    rows = pa.concat_tables(
        [pq.read_table(file, partitioning=None) for file in sorted((tmp_path / "out").glob("ds=*/*.parquet"))],
        promote_options="default",
    ).to_pylist()
    changes = Counter(
        (row["run_id"], row["id"], number, name, str(row[name]), str(row[f"{prefix}{name}"]))
        for number, prefix in ((1, "fcf_"), (2, "fcf2_"))
        for row in rows
        if row[f"{prefix}valid"]
        for name in CONFIG.table.features
        if row[name] != row[f"{prefix}{name}"]
    )
    asked = "SELECT run_id, id, option_number, feature, from_value, to_value FROM changes_long"
    assert Counter(connection.execute(asked).fetchall()) == changes
    totals = "SELECT sum(fcf_num_changed), sum(fcf2_num_changed) FROM explanations"
    counted = "SELECT count(*) FILTER (option_number = 1), count(*) FILTER (option_number = 2) FROM changes_long"
    [first, second] = connection.execute(counted).fetchone()
    assert connection.execute(totals).fetchone() == (first, second)
    assert second > 0
    left_out = "FROM explanations WHERE row_status = 'not_selected'"
    assert connection.execute(f"SELECT count(*) > 0, bool_and(pred_label = 1) {left_out}").fetchone() == (True, True)
    told = ("cf_income", "fcf_income", "fcf2_income", "fcf_valid", "fcf_distance", "explanation")
    counts = ", ".join(f"count({name})" for name in told)
    assert connection.execute(f"SELECT {counts} {left_out}").fetchone() == (0,) * len(told)
    asked = f"SELECT count(*) FROM changes_long SEMI JOIN (SELECT id, run_id {left_out}) USING (id, run_id)"
    assert connection.execute(asked).fetchone() == (0,)
    commented = "FROM duckdb_columns() WHERE table_name = 'explanations' AND column_name LIKE 'fcf2%'"
    assert connection.execute(f"SELECT count(*), count(comment) {commented}").fetchone() == (10, 10)


def test_without_rejects_the_view_is_there_and_empty(tmp_path: Path) -> None:
    explained_output(tmp_path, {"2026-11-14": people(50)})
    connection = duckdb.connect()
    for statement in view_statements(str(tmp_path / "out"), "duckdb"):
        connection.execute(statement)
    assert connection.execute("SELECT id, ds, reject_reason FROM rejects").fetchall() == []


COMMANDS = ("CALL system.sync_partition_metadata", "MSCK REPAIR TABLE", "CREATE OR REPLACE EXTERNAL TABLE")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_engines_sql_parses_and_names_all_views(dialect: str, made: tuple[Path, dict[str, Any]]) -> None:
    created = []
    for statement in view_statements(str(made[0]), dialect):
        parsed = sqlglot.parse_one(statement, dialect=dialect)
        if isinstance(parsed, exp.Command):  # what sqlglot has no grammar for
            assert statement.startswith(COMMANDS)
        elif isinstance(parsed, exp.Create):
            created.append(parsed.find(exp.Table).name)
    assert {"explanations", "changes_long", "rejects", "runs"} <= set(created)


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "duckdb"])
def test_every_engines_changes_are_the_same(
    dialect: str, made: tuple[Path, dict[str, Any]], connection: duckdb.DuckDBPyConnection
) -> None:
    ours = connection.execute("SELECT * FROM changes_long").fetchall()
    [statement] = [one for one in view_statements(str(made[0]), dialect) if "changes_long" in one]
    connection.execute(sqlglot.transpile(statement, read=dialect, write="duckdb")[0].replace("TEMPORARY ", ""))
    assert Counter(connection.execute("SELECT * FROM changes_long").fetchall()) == Counter(ours)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", [STRANGE, "x\\", "\\'; DROP TABLE t; --", '"', "`", "'"])
def test_names_and_values_are_quoted(dialect: str, text: str) -> None:
    sql = dialect_of(dialect)
    statements = sqlglot.parse(f"SELECT {sql.text_value(text)} AS {sql.name(text)}", dialect=dialect)
    [chosen] = statements[0].selects
    assert len(statements) == 1
    assert chosen.this.name == text
    if dialect != "bigquery" or not set(text) & set("`\\"):  # sqlglot does not know BigQuery's escapes in names
        assert chosen.alias == text


@pytest.mark.parametrize("dialect", ["trino", "athena"])
def test_external_tables_are_declared_anew_for_columns_that_came_later(
    dialect: str, made: tuple[Path, dict[str, Any]]
) -> None:
    done = []
    for statement in view_statements(str(made[0]), dialect):
        parsed = sqlglot.parse_one(statement, dialect=dialect)
        if isinstance(parsed, exp.Create | exp.Drop) and parsed.kind == "TABLE":
            done.append((type(parsed), parsed.find(exp.Table).name, bool(parsed.args.get("exists"))))
    assert done == [
        step
        for table in ("explanations_files", "rejects_files")
        for step in ((exp.Drop, table, True), (exp.Create, table, False))
    ]


def test_views_are_saved(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    result = write_views(str(made[0]), "duckdb", str(tmp_path / "sql"))
    assert Path(result["file"]).name == "views.duckdb.sql"
    duckdb.connect().execute(Path(result["file"]).read_text())


def test_an_output_without_rows_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no runs in it"):
        view_statements(str(tmp_path), "duckdb")


def test_files_tell_meanings_and_statistics_and_have_groups_that_engines_like(tmp_path: Path) -> None:
    place = tmp_path / "in" / "ds=1"
    place.mkdir(parents=True)
    for number in range(20):  # small files share a unit
        pq.write_table(people(5_000, seed=number), place / f"{number:02d}.parquet")
    explained_output(tmp_path, {"1": people(5_000, seed=20)})
    [file] = (tmp_path / "out" / "ds=1").glob("*.parquet")
    schema = pq.read_schema(file)
    added = schema.names[schema.names.index("pred_label") :]
    assert all(schema.field(name).metadata[b"comment"] for name in added)
    metadata = pq.read_metadata(file)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [70_000, 35_000]
    for group in groups:
        columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
        assert all(column.statistics.has_min_max for column in columns.values())
        assert columns["housing"].has_dictionary_page
        assert columns["fcf_grade"].has_dictionary_page
    as_stored = pq.read_table(file, partitioning=None, columns=["fcf_housing"], read_dictionary=["fcf_housing"])
    for chunk in as_stored.column("fcf_housing").chunks:
        assert chunk.dictionary.to_pylist() == sorted(chunk.dictionary.to_pylist())
    written = pq.read_table(file, partitioning=None)
    whole = pa.concat_tables([pq.read_table(one, partitioning=None) for one in sorted(place.glob("*.parquet"))])
    assert written.select(whole.column_names).equals(whole)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_delta_table_is_read_as_one(dialect: str, tmp_path: Path) -> None:
    explained_output(tmp_path, {"2026-11-14": people(50)}, output_format="delta")
    first = view_statements(str(tmp_path / "out"), dialect)[0]
    assert "delta" in first.lower() or "register_table" in first
    assert "part-" not in first
